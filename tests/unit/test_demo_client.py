"""The demo's client, fed with bytes by hand: what it times, and what it calls a refusal."""

from __future__ import annotations

import asyncio
import json
from typing import cast

import pytest

from tidegate.cli.demo._plan import Question
from tidegate.cli.demo._record import Record
from tidegate.cli.load import Exchange, chat_request


class Wire(asyncio.Transport):
    """A transport that keeps what was written and whether it was aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += bytes(data)

    def abort(self) -> None:
        self.aborted = True


class Talk:
    """An exchange on a wire with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.25
        self.record = Record(Question(0, 0, 0.0, 10, 3))
        self.exchange = Exchange(b"request", self.record, lambda: self.now)
        self.wire = Wire()
        self.exchange.connection_made(self.wire)

    def hear(self, data: bytes, *, at: float) -> None:
        self.now = at
        self.exchange.data_received(data)


def head(status: str = "200 OK", *lines: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "transfer-encoding: chunked", "", ""]).encode()


def chunk(text: str) -> bytes:
    return f"{len(text.encode()):x}\r\n{text}\r\n".encode()


def piece(text: str) -> str:
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}) + "\n\n"


ROLE = "data: " + json.dumps({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}) + "\n\n"
END = chunk("data: [DONE]\n\n") + b"0\r\n\r\n"


def test_a_streamed_answer_is_timed_from_its_due_moment() -> None:
    talk = Talk()
    talk.hear(head("200 OK", "x-tidegate-queue-ms: 1500"), at=1.6)
    talk.hear(chunk(ROLE), at=1.7)
    talk.hear(chunk(piece("a")), at=2.0)
    talk.hear(chunk(piece("b") + piece("c")), at=3.0)
    talk.hear(END, at=3.5)
    record = talk.record
    assert talk.wire.sent == b"request"
    assert (record.sent_s, record.queue_s, record.first_s, record.done_s) == (0.25, 1.5, 2.0, 3.5)
    assert (record.pieces, record.refused) == (3, None)
    assert talk.exchange.done.is_set()
    assert talk.wire.aborted


def test_an_answer_cut_at_every_byte_is_read_the_same() -> None:
    whole = head() + chunk(ROLE) + chunk(piece("ä")) + END
    talk = Talk()
    for at in range(len(whole)):
        talk.hear(whole[at : at + 1], at=1.0)
    assert (talk.record.pieces, talk.record.refused, talk.record.done_s) == (1, None, 1.0)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (head("429 Too Many Requests", "x-tidegate-reason: expired") + b"0\r\n\r\n", "expired"),
        (head("200 OK", "x-tidegate-reason: shed") + chunk(piece("busy")) + END, "shed"),
        (head("502 Bad Gateway") + b"0\r\n\r\n", "http_502"),
        (head() + chunk('data: {"error": {"message": "no"}}\n\n') + b"0\r\n\r\n", "error_event"),
        (head() + chunk(piece("a")) + b"0\r\n\r\n", "cut"),
        (b"nonsense\r\n\r\n", "broken_answer"),
    ],
)
def test_what_is_not_a_whole_answer_is_a_refusal(answer: bytes, reason: str) -> None:
    talk = Talk()
    talk.hear(answer, at=1.0)
    assert talk.record.refused == reason
    assert talk.exchange.done.is_set()


def test_a_lost_connection_is_a_failure_but_not_after_the_end() -> None:
    lost = Talk()
    lost.exchange.connection_lost(None)
    assert lost.record.refused == "connection_lost"
    whole = Talk()
    whole.hear(head() + chunk(piece("a")) + END, at=1.0)
    whole.exchange.connection_lost(None)
    assert whole.record.refused is None


def test_leaving_keeps_the_record_as_it_is() -> None:
    talk = Talk()
    talk.exchange.leave()
    talk.exchange.connection_lost(None)
    talk.hear(head() + chunk(piece("late")), at=2.0)
    assert talk.wire.aborted
    assert (talk.record.refused, talk.record.first_s) == (None, None)


def test_the_request_is_a_streamed_chat_with_its_length() -> None:
    request = chat_request("127.0.0.1:9", key="tg-key", prompt="hé", output_tokens=7)
    headers, _, body = request.partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in headers
    assert b"authorization: Bearer tg-key" in headers
    sent = cast("dict[str, object]", json.loads(body))
    assert sent["stream"] is True
    assert sent["max_tokens"] == 7
