"""A body in a file: back as it was, away when nobody wants it, and in memory when the disk is full."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import IO

import pytest

from tidegate.classify import Classifier, Facts, ParsedBody, Refused, Route, parse_body
from tidegate.config import parse_settings
from tidegate.gateway import spill
from tidegate.gateway.asked import Asked
from tidegate.gateway.crowd import Crowd
from tidegate.gateway.spill import LARGE, Spill

pytestmark = pytest.mark.anyio

SETTINGS = parse_settings('models: [{name: m, backends: [{name: b, url: "http://127.0.0.1:9"}]}]')


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def asked_for(**more: object) -> Asked:
    raw = json.dumps({"model": "m", "messages": ["x" * LARGE], **more}).encode()
    body = parse_body(raw, Route.CHAT)
    assert isinstance(body, ParsedBody)
    classified = Classifier(SETTINGS).classify(
        Facts(Route.CHAT, Route.CHAT, {b"host": b"localhost"}, raw, body, "req-1")
    )
    assert not isinstance(classified, Refused)
    return Asked(Route.CHAT, [], raw, body, classified)


async def written(asked: Asked) -> None:
    for _ in range(4000):
        if not asked.raw:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the body was not written")


async def test_a_body_comes_back_as_it_was() -> None:
    asked = asked_for(tools=[1], priority=3)
    raw, size = asked.raw, len(asked.raw)
    spilled = Spill(asked)
    spilled.begin()
    await written(asked)
    assert (asked.plain, asked.size, bytes(asked.body.tools)) == (False, size, b"")
    await spilled.restore()
    assert (asked.raw, bytes(asked.body.tools), bytes(asked.body.priority)) == (raw, b"[1]", b"3")
    await spilled.restore()
    spilled.close()
    assert asked.raw == raw


async def test_small_bodies_stay() -> None:
    asked = asked_for()
    asked.raw = asked.raw[:LARGE]
    spilled = Spill(asked)
    spilled.begin()
    await spilled.restore()
    assert len(asked.raw) == LARGE


@pytest.mark.parametrize("end", ["restore", "close"])
async def test_what_is_written_too_late_is_thrown_away(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    go, files = threading.Event(), []
    write = spill.write_out

    def slowly(raw: bytes) -> IO[bytes]:
        assert go.wait(40)
        files.append(write(raw))
        return files[0]

    monkeypatch.setattr(spill, "write_out", slowly)
    asked = asked_for()
    raw = asked.raw
    spilled = Spill(asked)
    spilled.begin()
    if end == "restore":
        await spilled.restore()
    else:
        spilled.close()
    go.set()
    for _ in range(4000):
        if files and files[0].closed:
            break
        await asyncio.sleep(0.01)
    assert files[0].closed
    assert asked.raw == raw


async def test_a_full_disk_leaves_the_body_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = threading.Event()

    def full(raw: bytes) -> IO[bytes]:
        tried.set()
        raise OSError(28, f"no space for {len(raw)} bytes")

    monkeypatch.setattr(spill, "write_out", full)
    asked = asked_for()
    raw = asked.raw
    spilled = Spill(asked)
    spilled.begin()
    assert await asyncio.to_thread(tried.wait, 40)
    await asyncio.sleep(0.01)
    await spilled.restore()
    assert asked.raw == raw
    spilled.close()


def test_a_crowd_counts_each_tenant_and_forgets_who_left() -> None:
    crowd = Crowd(2)
    assert [crowd.enter("a") is None for _ in range(3)] == [True, True, False]
    assert crowd.enter("b") is None
    crowd.leave("a")
    assert crowd.enter("a") is None
    for name in ("a", "a", "b"):
        crowd.leave(name)
    assert crowd._open == {}
    unlimited = Crowd(None)
    assert [unlimited.enter("a") for _ in range(5)] == [None] * 5
    unlimited.leave("a")
