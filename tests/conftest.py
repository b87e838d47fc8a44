"""Options and fixtures that every test folder shares."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-scenarios", action="store_true", help="write the actions seen into tests/scenarios/*.txt"
    )
