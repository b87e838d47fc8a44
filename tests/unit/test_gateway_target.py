"""Targets of requests are taken apart once, and few of them are kept."""

from __future__ import annotations

import pytest
from httptools import HttpParserInvalidURLError

from tidegate.gateway import target
from tidegate.gateway.target import read_target


def test_a_target_is_path_and_query() -> None:
    assert read_target(b"/v1/a%20b?q=1") == ("/v1/a b", b"/v1/a%20b", b"q=1")
    assert target.known[b"/v1/a%20b?q=1"] == read_target(b"/v1/a%20b?q=1")
    assert read_target(b"http://host/v1/x") == ("/v1/x", b"/v1/x", b"")
    with pytest.raises(HttpParserInvalidURLError):
        read_target(b"")


def test_what_is_remembered_is_bounded() -> None:
    for number in range(2 * target.MOST):
        read_target(b"/%d" % number)
        assert len(target.known) <= target.MOST
    before = len(target.known)
    read_target(b"/" + b"x" * target.LONGEST)
    assert len(target.known) == before
