"""Where a response ends, whatever the cuts between reads: over a fake wire, no sockets, virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from tidegate.backends import BackendError, Broken, ProtocolError, Reuse, Unavailable, Upstream
from tidegate.testing.wire import Wire, WireLoop, run_wire, settle


@dataclass
class Got:
    """What became of one request."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    error: BackendError | None
    idle: int
    open: int
    wire: Wire


def fetch(*pieces: bytes, method: bytes = b"POST", end: str = "", reuse: Reuse = Reuse.ALWAYS) -> Got:
    """Send one request, deliver the pieces as one read each, then the end if any, and read all there is."""

    async def story(loop: WireLoop) -> Got:
        upstream = Upstream("http://engine:8000", reuse=reuse, max_head=1000, high_water=1 << 20)
        task = asyncio.ensure_future(upstream.request(method, b"/v1/x", [(b"a", b"b")], b"{}"))
        await settle()
        wire = loop.wires[0]
        for piece in pieces:
            wire.deliver(piece)
            await settle()
        if end:
            getattr(wire, end)()
        got = Got(0, [], b"", None, 0, 0, wire)
        try:
            response = await asyncio.wait_for(task, 1)
            got.status, got.headers = response.status, response.headers
            while data := await asyncio.wait_for(response.read(), 1):
                got.body += data
        except BackendError as error:
            got.error = error
        await settle()
        got.idle, got.open = upstream.idle, upstream.open
        await upstream.close()
        return got

    return run_wire(story)


LENGTH = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-Empty:\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;ext="v"\r\nhel\r\n02\r\nlo\r\n0;last\r\n\r\n'
TRAILERS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\nX-Empty:\r\n\r\n"
EARLY = (
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nX-Final: 1\r\nContent-Length: 5\r\n\r\nhello"
)
CLOSED = b"HTTP/1.1 200 OK\r\nX-Odd:  spaced \r\n\r\nhello"
CLOSED_OLD = b"HTTP/1.0 200 OK\r\n\r\nhello"
CLOSED_CODED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhello"
FRAMED = {"length": LENGTH, "chunked": CHUNKED, "trailers": TRAILERS, "informational": EARLY}
BY_CLOSE = {"http11": CLOSED, "http10": CLOSED_OLD, "coded": CLOSED_CODED}


@pytest.mark.parametrize("raw", FRAMED.values(), ids=FRAMED)
def test_a_framed_response_is_the_same_for_every_cut_in_two(raw: bytes) -> None:
    for cut in range(1, len(raw)):
        got = fetch(raw[:cut], raw[cut:])
        assert (got.status, got.body, got.error) == (200, b"hello", None), cut
        assert (got.idle, got.open) == (1, 1), cut
        assert got.headers == fetch(raw).headers


@pytest.mark.parametrize("raw", FRAMED.values(), ids=FRAMED)
def test_a_framed_response_survives_single_bytes(raw: bytes) -> None:
    got = fetch(*[raw[i : i + 1] for i in range(len(raw))])
    assert (got.status, got.body, got.error, got.idle) == (200, b"hello", None, 1)


@pytest.mark.parametrize("raw", BY_CLOSE.values(), ids=BY_CLOSE)
def test_a_body_without_framing_ends_with_the_connection(raw: bytes) -> None:
    for cut in range(1, len(raw)):
        got = fetch(raw[:cut], raw[cut:], end="end")
        assert (got.status, got.body, got.error, got.open) == (200, b"hello", None, 0), cut


@pytest.mark.parametrize("raw", BY_CLOSE.values(), ids=BY_CLOSE)
def test_a_reset_is_no_end_of_a_body(raw: bytes) -> None:
    got = fetch(raw, end="reset")
    assert got.body == b"hello"
    assert isinstance(got.error, Broken)


def test_headers_come_lower_case_in_order_without_trailers_or_hints() -> None:
    assert fetch(LENGTH).headers == [(b"content-type", b"text/plain"), (b"x-empty", b""), (b"content-length", b"5")]
    assert fetch(TRAILERS).headers == [(b"transfer-encoding", b"chunked")]
    assert fetch(EARLY).headers == [(b"x-final", b"1"), (b"content-length", b"5")]
    assert fetch(CLOSED, end="end").headers == [(b"x-odd", b"spaced")]


@pytest.mark.parametrize("end", ["end", "reset"])
@pytest.mark.parametrize("raw", FRAMED.values(), ids=FRAMED)
def test_an_early_end_is_a_fault_at_every_byte(raw: bytes, end: str) -> None:
    final = raw.index(b"HTTP/1.1 200")
    head = raw.index(b"\r\n\r\n", final) + 4
    for cut in range(1, len(raw)):
        got = fetch(raw[:cut], end=end)
        assert isinstance(got.error, Broken), cut
        assert got.error.sent
        assert got.status == (200 if cut >= head else 0)
        assert b"hello".startswith(got.body)
        assert got.open == 0, cut


@pytest.mark.parametrize("raw", [LENGTH, CHUNKED, TRAILERS])
def test_an_announced_close_excuses_no_early_end(raw: bytes) -> None:
    last = raw.replace(b"200 OK\r\n", b"200 OK\r\nConnection: close\r\n")
    for cut in range(1, len(last)):
        assert isinstance(fetch(last[:cut], end="end").error, Broken), cut
    got = fetch(last, end="end")
    assert (got.body, got.error) == (b"hello", None)


@pytest.mark.parametrize("end", ["end", "reset"])
def test_a_first_connection_that_ends_without_a_byte_is_unavailable_and_not_retried(end: str) -> None:
    got = fetch(end=end)
    assert isinstance(got.error, Unavailable)
    assert got.error.sent
    assert got.open == 0


@pytest.mark.parametrize(
    ("status", "method", "headers"),
    [
        (b"204 No Content", b"POST", b""),
        (b"304 Not Modified", b"GET", b"Content-Length: 77\r\n"),
        (b"200 OK", b"HEAD", b"Content-Length: 77\r\n"),
        (b"200 OK", b"HEAD", b"Transfer-Encoding: chunked\r\n"),
        (b"200 OK", b"HEAD", b""),
        (b"200 OK", b"HEAD", b"Content-Length: 0\r\n"),
        (b"200 OK", b"POST", b"Content-Length: 0\r\n"),
    ],
)
def test_responses_without_a_body_end_with_their_head(status: bytes, method: bytes, headers: bytes) -> None:
    raw = b"HTTP/1.1 %b\r\n%b\r\n" % (status, headers)
    for cut in range(1, len(raw) + 1):
        got = fetch(raw[:cut], raw[cut:] or b"", method=method) if cut < len(raw) else fetch(raw, method=method)
        assert (got.status, got.body, got.error) == (int(status[:3]), b"", None), cut
        assert got.idle == (0 if method == b"HEAD" else 1)


@pytest.mark.parametrize("leftover", [b"HTTP/1.1 200 OK\r\n", b"x", b"\0", LENGTH], ids=repr)
@pytest.mark.parametrize("raw", FRAMED.values(), ids=FRAMED)
def test_bytes_behind_a_complete_response_cost_the_connection_not_the_response(raw: bytes, leftover: bytes) -> None:
    for pieces in ((raw + leftover,), (raw, leftover), (raw[:-1], raw[-1:] + leftover)):
        got = fetch(*pieces)
        assert (got.status, got.body, got.error) == (200, b"hello", None)
        assert (got.idle, got.open) == (0, 0)
        assert got.wire.ended


@pytest.mark.parametrize(
    "raw",
    [
        LENGTH.replace(b"Content-Type", b"Connection: close\r\nContent-Type"),
        LENGTH.replace(b"1.1", b"1.0"),
        LENGTH.replace(b"1.1", b"2.0"),
    ],
)
def test_a_connection_that_may_not_be_kept_is_closed(raw: bytes) -> None:
    got = fetch(raw)
    assert (got.body, got.error, got.open) == (b"hello", None, 0)


def test_an_old_server_may_ask_to_keep_the_connection() -> None:
    raw = LENGTH.replace(b"1.1", b"1.0").replace(b"X-Empty:", b"Connection: keep-alive")
    assert fetch(raw).idle == 1


def test_after_plain_reuses_after_a_length_and_not_after_chunks() -> None:
    assert fetch(LENGTH, reuse=Reuse.AFTER_PLAIN).idle == 1
    got = fetch(CHUNKED, reuse=Reuse.AFTER_PLAIN)
    assert (got.body, got.error, got.open) == (b"hello", None, 0)


@pytest.mark.parametrize(
    "raw",
    [
        b"junk\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 xyz OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 099 Low\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        b"HTTP/1.1 600 No\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 999 No\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        b"HTTP/1.1 200 OK\r\nA: b\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\rContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA b: c\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\r\n folded\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: \0\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 103 Early\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 103 Early\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ],
)
def test_what_is_no_response_is_refused_and_the_connection_closed(raw: bytes) -> None:
    for pieces in ((raw,), tuple(raw[i : i + 1] for i in range(len(raw)))):
        got = fetch(*pieces)
        assert isinstance(got.error, ProtocolError), got
        assert (got.status, got.open) == (0, 0)
        assert b" 101 " not in raw or "status 101" in str(got.error)


@pytest.mark.parametrize(
    "body", [b"zz\r\n", b"5\nhello\n", b"5\r\nhelloX", b"-1\r\n", b"5\r\nhello\r\nFFFFFFFFFFFFFFFFFF\r\n"]
)
def test_malformed_chunks_break_the_response_after_what_was_good(body: bytes) -> None:
    got = fetch(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
    assert isinstance(got.error, ProtocolError)
    assert got.status == 200
    assert got.body in {b"", b"hello"}
    assert got.open == 0


FILLER = b"x" * 400


@pytest.mark.parametrize(
    "pieces",
    [
        (b"HTTP/1.1 200 OK\r\nA: " + FILLER * 3 + b"\r\nContent-Length: 0\r\n\r\n",),
        (b"HTTP/1.1 200 OK\r\nA: " + FILLER * 3 + b"\r\nContent-Length: 5\r\n\r\nhello",),
        (b"HTTP/1.1 200 OK\r\nA: ", FILLER, FILLER, FILLER),
        (b"HTTP/1.1 200 ", FILLER, FILLER, FILLER),
        (b"HTTP/1.1 103 Early\r\nA: %b\r\n\r\n" % FILLER,) * 3,
        (CHUNKED[:-2], b"T: ", FILLER, FILLER, FILLER),
        (CHUNKED[:-2], *(b"T: %b\r\n" % FILLER,) * 3),
        (CHUNKED[: CHUNKED.index(b'"v')], FILLER, FILLER, FILLER),
    ],
    ids=["one read", "with body", "header", "status", "hints", "trailer", "trailers", "chunk line"],
)
def test_heads_chunk_lines_and_trailers_are_bounded(pieces: tuple[bytes, ...]) -> None:
    got = fetch(*pieces)
    assert isinstance(got.error, ProtocolError), got
    assert "1000 bytes" in str(got.error)
    assert got.open == 0


def test_a_long_body_in_small_pieces_is_not_taken_for_a_long_head() -> None:
    pieces = [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", *[b"1\r\nx\r\n"] * 600, b"0\r\n\r\n"]
    assert fetch(*pieces).body == b"x" * 600
    assert fetch(b"".join(pieces)).body == b"x" * 600


def test_the_request_is_written_once_with_its_framing() -> None:
    sent = bytes(fetch(LENGTH).wire.sent)
    assert sent == b"POST /v1/x HTTP/1.1\r\nhost: engine:8000\r\ncontent-length: 2\r\na: b\r\n\r\n{}"


def test_a_body_behind_the_head_of_a_head_request_is_not_handed_out() -> None:
    got = fetch(LENGTH, method=b"HEAD")
    assert (got.status, got.body, got.error, got.open) == (200, b"", None, 0)
