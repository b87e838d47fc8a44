"""Options and fixtures that every test folder shares."""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings

# How long an example takes is the machine's business: a busy one takes a second for what needs a millisecond.
settings.register_profile("tidegate", deadline=None)
settings.load_profile("tidegate")

# Whoever starts the tests in the background of a shell has this signal ignored, and so would every process that they
# start and stop by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-scenarios", action="store_true", help="write the actions seen into tests/scenarios/*.txt"
    )
