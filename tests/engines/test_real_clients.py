"""The official client through the gateway finds the same behind llama.cpp and vLLM as behind the simulated engine."""

from __future__ import annotations

import pytest

from e2e.client_cases import ClientCases, Target
from engines.servers import ENGINE_TEST

pytestmark = ENGINE_TEST


class TestLlamaCpp(ClientCases):
    """All cases on llama.cpp."""

    @pytest.fixture
    def target(self, llama_target: Target) -> Target:
        return llama_target


class TestVllm(ClientCases):
    """All cases on vLLM."""

    @pytest.fixture
    def target(self, vllm_target: Target) -> Target:
        return vllm_target
