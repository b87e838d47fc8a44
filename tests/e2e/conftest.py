"""Processes that several end-to-end tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidegate.testing.processes import engine_process


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """Root URL of a fast simulated engine for the model ``sim``."""
    with engine_process(speed=4, noise=0) as url:
        yield url
