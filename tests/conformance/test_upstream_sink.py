"""A reader that takes pieces as they come gets what the parser would have given, however the bytes are cut."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest

from tidegate.backends import BackendError, Response, Upstream
from tidegate.backends.response import Sink
from tidegate.testing.wire import Wire, WireLoop, run_wire, settle

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"

BODIES = {
    "plain": (b"5\r\nhello\r\n", b"3\r\nyou\r\n", b"1\r\n!\r\n"),
    "content like framing": (b"4\r\n\r\n\r\n\r\n", b"7\r\n2\r\nab\r\n\r\n", b"2\r\n\r\n\r\n", b"5\r\n0\r\n\r\n\r\n"),
    "capitals and zeros": (b"A\r\n0123456789\r\n", b"0003\r\nabc\r\n", b"0a\r\n0123456789\r\n"),
    "extensions": (b"5;name=value\r\nhello\r\n", b"2\r\nab\r\n", b"3;x\r\nabc\r\n", b"1\r\nz\r\n"),
    "long": (b"1000\r\n" + b"x" * 4096 + b"\r\n", b"2\r\nab\r\n"),
}


def content(chunks: tuple[bytes, ...]) -> bytes:
    """Give what is in chunks, told by length and not by search."""
    whole = b""
    for chunk in chunks:
        line, _, rest = chunk.partition(b"\r\n")
        whole += rest[: int(line.partition(b";")[0], 16)]
    return whole


async def streaming(loop: WireLoop) -> tuple[Wire, Response]:
    upstream = Upstream("http://engine:8000", name="gpu-a")
    task = asyncio.ensure_future(upstream.request(b"POST", b"/v1/x", (), b"{}"))
    await settle()
    wire = loop.wires[-1]
    wire.deliver(HEAD)
    return wire, await task


class Taker(Sink):
    """Takes pieces, all or those whose turn it is, and notes the ones that came with their framing."""

    def __init__(self, *, takes: tuple[bool, ...] = (True,)) -> None:
        self.taken: list[bytes] = []
        self.framed = 0
        self._takes = takes
        self._offered = 0

    def take(self, piece: bytes, chunk: bytes | None) -> bool:
        taken = self._takes[self._offered % len(self._takes)]
        self._offered += 1
        if chunk is not None:
            assert chunk == b"%x\r\n%b\r\n" % (len(piece), piece) or chunk == b"%X\r\n%b\r\n" % (len(piece), piece)
            self.framed += taken
        if taken:
            self.taken.append(piece)
        return taken


async def read_all(response: Response, taker: Taker) -> bytes:
    """Read to the end as the relay does; what the taker refused goes behind what it had taken by then."""
    while data := await response.read_past(taker):
        taker.taken.append(data)
    return b"".join(taker.taken)


def relayed(pieces: list[bytes], taker: Taker) -> bytes:
    """Deliver these reads one by one, the reader awake after each, and give what it got."""

    async def story(loop: WireLoop) -> bytes:
        wire, response = await streaming(loop)
        reader = asyncio.ensure_future(read_all(response, taker))
        for piece in pieces:
            await settle()
            wire.deliver(piece)
        return await reader

    return run_wire(story)


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_comes_chunk_by_chunk(name: str) -> None:
    taker = Taker()
    assert relayed([*BODIES[name], LAST], taker) == content(BODIES[name])


def test_chunks_in_the_plainest_form_are_passed_with_their_framing_once_the_first_has_been_parsed() -> None:
    taker = Taker()
    relayed([*BODIES["plain"], LAST], taker)
    assert taker.framed == len(BODIES["plain"]) - 1


@pytest.mark.parametrize("name", [name for name in BODIES if name != "long"])
def test_a_body_cut_in_two_at_every_byte(name: str) -> None:
    whole = b"".join(BODIES[name]) + LAST
    for at in range(1, len(whole)):
        assert relayed([whole[:at], whole[at:]], Taker()) == content(BODIES[name])


def test_a_body_cut_in_three_around_each_chunk() -> None:
    for name in ("plain", "content like framing", "extensions"):
        chunks = BODIES[name]
        for number in range(1, len(chunks)):
            before, chunk, behind = b"".join(chunks[:number]), chunks[number], b"".join(chunks[number + 1 :]) + LAST
            for at in range(1, len(chunk)):
                assert relayed([before, chunk[:at], chunk[at:], behind], Taker()) == content(chunks)


def test_random_chunks_cut_at_random_for_a_reader_that_takes_some() -> None:
    rng = random.Random(5)
    for _ in range(150):
        bodies = [bytes(rng.choices(b"\r\n0a5;x", k=rng.randint(1, 30))) for _ in range(rng.randint(1, 8))]
        chunks = tuple(b"%x\r\n%b\r\n" % (len(body), body) for body in bodies)
        whole = b"".join(chunks) + LAST
        ends = [sum(map(len, chunks[:number])) for number in range(1, len(chunks) + 1)]
        cuts = {end for end in ends if rng.random() < 0.7} | set(rng.sample(range(1, len(whole)), rng.randint(0, 3)))
        places = [0, *sorted(cuts), len(whole)]
        pieces = [whole[start:end] for start, end in itertools.pairwise(places) if start < end]
        takes = tuple(rng.random() < 0.7 for _ in range(7))
        assert relayed(pieces, Taker(takes=takes)) == b"".join(bodies)


@pytest.mark.parametrize(
    "wrong",
    [b"0x2\r\nab\r\n", b"+2\r\nab\r\n", b"1_0\r\n0123456789abcdef\r\n", b" 2\r\nab\r\n", b"g\r\nab\r\n", b"2\r\nabc\r"],
)
def test_what_is_no_chunk_is_never_passed_on(wrong: bytes) -> None:
    taker = Taker()
    with pytest.raises(BackendError):
        relayed([b"1\r\na\r\n", b"1\r\nb\r\n", wrong, LAST, LAST], taker)
    assert b"".join(taker.taken).startswith(b"ab")
    assert taker.framed == 1


def test_a_chunk_does_not_overtake_a_piece_that_was_refused() -> None:
    async def story(loop: WireLoop) -> None:
        wire, response = await streaming(loop)
        taker = Taker(takes=(False, True))
        reader = asyncio.ensure_future(read_all(response, taker))
        await settle()
        wire.deliver(b"1\r\na\r\n", b"1\r\nb\r\n", b"1\r\nc\r\n", LAST)  # before the reader can wake
        assert await reader == b"abc"

    run_wire(story)


def test_half_a_size_and_content_that_looks_like_the_rest_of_a_chunk() -> None:
    taker = Taker()
    pieces = [b"1\r\na\r\n1", b"2\r\nbc\r\n", b"0123456789abcd\r\n", LAST]  # one chunk of 18 bytes behind the first
    assert relayed(pieces, taker) == b"abc\r\n0123456789abcd"
    assert taker.framed == 0
