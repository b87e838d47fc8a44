"""Faults of the simulated engine, on real sockets."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime

import openai
import pytest

from e2e.simserver_stage import call, chat, connection, stats, text_of, until
from tidegate.testing.processes import engine_process

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with engine_process(model="sim-8b", seed=5, max_model_len=4096) as address:
        yield address


@pytest.fixture
def set_fault(url: str) -> Iterator[Callable[..., None]]:
    def switch(kind: str, **fields: object) -> None:
        status, _, body = call(url, "POST", "/sim/fault", {"kind": kind, **fields})
        assert status == 200, body

    yield switch
    switch("none")


def test_busy_says_when_to_come_back(url: str, set_fault: Callable[..., None]) -> None:
    set_fault("429", retry_after_s=2)
    status, headers, body = call(url, "POST", "/v1/chat/completions", chat())
    assert (status, headers["retry-after"], json.loads(body)["error"]["code"]) == (429, "2", 429)
    set_fault("429", retry_after_s=0.25, retry_form="ms")
    assert call(url, "POST", "/v1/chat/completions", chat())[1]["retry-after-ms"] == "250"
    set_fault("429", retry_after_s=60, retry_form="date")
    when = call(url, "POST", "/v1/chat/completions", chat())[1]["retry-after"]
    assert 50 < parsedate_to_datetime(when).timestamp() - time.time() <= 60


def test_fault_strikes_as_often_as_told(url: str, set_fault: Callable[..., None]) -> None:
    set_fault("500", times=2)
    assert [call(url, "POST", "/v1/chat/completions", chat())[0] for _ in range(3)] == [500, 500, 200]


def test_official_client_obeys_the_retry_header(url: str, set_fault: Callable[..., None]) -> None:
    set_fault("429", times=1, retry_after_s=0.3, retry_form="ms")
    started = time.monotonic()
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=2) as patient:
        assert text_of(patient, max_tokens=5)
    assert time.monotonic() - started >= 0.3


def test_error_inside_a_stream(url: str, set_fault: Callable[..., None]) -> None:
    set_fault("stream_error", after_tokens=3)
    status, _, body = call(url, "POST", "/v1/chat/completions", chat(stream=True))
    events = body.decode().split("\n\n")
    assert status == 200
    assert json.loads(events[-3].removeprefix("data: "))["error"]["code"] == 500
    assert len(events) == 1 + 3 + 1 + 2
    assert call(url, "POST", "/v1/chat/completions", chat())[0] == 500
    assert until(lambda: stats(url)["running"] == 0)


@pytest.mark.parametrize("stream", [True, False])
def test_cut_answer_ends_without_its_end(url: str, set_fault: Callable[..., None], stream: bool) -> None:
    set_fault("cut", after_tokens=4)
    with pytest.raises(http.client.IncompleteRead) as caught:
        call(url, "POST", "/v1/chat/completions", chat(stream=stream))
    assert b"[DONE]" not in caught.value.partial
    assert until(lambda: stats(url)["running"] == 0)


def test_hanging_answer_goes_silent(url: str, set_fault: Callable[..., None]) -> None:
    set_fault("hang", after_tokens=2)
    with contextlib.closing(connection(url)) as wire:
        wire.request("POST", "/v1/chat/completions", json.dumps(chat(stream=True)))
        assert wire.sock is not None
        sock = wire.sock
        response = wire.getresponse()
        assert sum(line.startswith(b"data: ") for line in iter(response.readline, b"\n")) >= 1
        sock.settimeout(1.0)
        with pytest.raises(TimeoutError):
            response.read()


def test_slow_engine_takes_longer(url: str, set_fault: Callable[..., None]) -> None:
    set_fault("slow", factor=10)
    started = time.monotonic()
    call(url, "POST", "/v1/chat/completions", chat(max_tokens=20))
    assert time.monotonic() - started > 1.0, "20 steps of 6.6 ms, ten times as long"


def test_unknown_fault_is_refused(url: str) -> None:
    assert call(url, "POST", "/sim/fault", {"kind": "fire"})[0] == 400
    assert call(url, "POST", "/sim/fault", {"kind": "429", "colour": 1})[0] == 400
    assert json.loads(call(url, "GET", "/sim/fault")[2])["kind"] == "none"
