"""Real engines and gateways that many tests share; each is started when the first test needs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.client_cases import Target
from engines.servers import VLLM_SLOTS, behind_gateway, llama_server, vllm_server
from tidegate.testing.engines import EngineServer


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engines")


@pytest.fixture(scope="session")
def fast_llama(logs: Path) -> Iterator[EngineServer]:
    """Thousands of tokens a second, 4 slots."""
    with llama_server(logs / "llama-fast", model="tiny", slots=4, context=8192) as server:
        yield server


@pytest.fixture(scope="session")
def slow_llama(logs: Path) -> Iterator[EngineServer]:
    """Some ten milliseconds a token, 4 slots."""
    # In a burst its HTTP server makes connections beyond its threads wait, and the metrics with them.
    threads = ("--threads-http", "32")
    with llama_server(logs / "llama-slow", model="slow", slots=4, context=4096, more=threads) as server:
        yield server


@pytest.fixture(scope="session")
def slow_vllm(logs: Path) -> Iterator[EngineServer]:
    """Some six milliseconds a token, 6 slots, 31 blocks of 32 tokens."""
    with vllm_server(logs / "vllm-slow", model="slow") as server:
        yield server


@pytest.fixture(scope="session")
def fast_llama_target(fast_llama: EngineServer) -> Iterator[Target]:
    with behind_gateway(fast_llama, seats=4) as target:
        yield target


@pytest.fixture(scope="session")
def llama_target(slow_llama: EngineServer) -> Iterator[Target]:
    with behind_gateway(slow_llama, seats=4) as target:
        yield target


@pytest.fixture(scope="session")
def vllm_target(slow_vllm: EngineServer) -> Iterator[Target]:
    with behind_gateway(slow_vllm, seats=VLLM_SLOTS) as target:
        yield target
