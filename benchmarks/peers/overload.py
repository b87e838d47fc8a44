"""The four situations of the functional comparison, played by clients that know nothing of the gateway but its address.

Every wait counts from the moment a request is sent to the end of its answer, less the time that the engine takes for
it when nobody else is there.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools

from benchmarks.peers.engine import TOKEN_S, TOKENS
from tidegate.backends import BackendError, Upstream

LOW, HIGH = 60, 8
LATER_S = 0.5
BACKLOG = 200
"""12.5 s of work for four seats."""
AGED_S = 4.0
PATIENCE_S = 60.0
LONG = 80
TRIES = 200
ROOM = 16
SHOWS_AFTER_S = 2.0
"""A request that is not answered for so long has not been refused."""

Headers = list[tuple[bytes, bytes]]
Dress = Callable[[bool], tuple[Headers, dict[str, object]]]
"""Gives the headers and the fields of the body that say high (True) or low."""


@dataclass(slots=True)
class Ended:
    """One request's end; ``status`` 0: none came."""

    status: int = 0
    wait_s: float = 0.0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    words: int = 0
    closed: bool = False
    whole: bool = False

    @property
    def form(self) -> str:
        """Say in a few words what the client got."""
        if not self.status:
            return "connection closed" if self.closed else "no answer"
        told = f"{self.status}"
        if self.status == 200:
            return "whole answer" if self.whole else f"200, cut after {self.words} tokens"
        hint = self.headers.get(b"retry-after")
        return told + (f", Retry-After {hint.decode()}" if hint else ", no Retry-After")


class Clients:
    """All clients of one gateway."""

    def __init__(self, url: str, dress: Dress) -> None:
        self.url = url
        self.dress = dress
        self._upstream = Upstream(url, max_idle=0, connect_timeout_s=10, head_timeout_s=None, silence_timeout_s=None)

    def body_of(self, *, high: bool, stream: bool, tokens: int) -> tuple[Headers, bytes]:
        """Give a request."""
        headers, fields = self.dress(high)
        asked: dict[str, object] = {"model": "bench", "messages": [{"role": "user", "content": "Count to ten."}]}
        body = json.dumps(asked | {"max_tokens": tokens, "stream": stream} | fields).encode()
        return [(b"content-type", b"application/json"), *headers], body

    async def ask(self, *, high: bool, stream: bool = False, tokens: int = TOKENS) -> Ended:
        """Send one request and wait for its end."""
        headers, body = self.body_of(high=high, stream=stream, tokens=tokens)
        began, ended = time.monotonic(), Ended()
        try:
            async with asyncio.timeout(PATIENCE_S):
                response = await self._upstream.request(b"POST", b"/v1/chat/completions", headers, body)
                ended.status, ended.headers = response.status, dict(response.headers)
                text = b""
                while piece := await response.read():
                    text += piece
                    ended.words = text.count(b" word")
                ended.whole = ended.words == tokens and (not stream or b"[DONE]" in text)
        except BackendError:
            ended.closed = True
        except TimeoutError:
            pass
        ended.wait_s = time.monotonic() - began - tokens * TOKEN_S
        return ended

    def start(self, count: int, *, high: bool, stream: bool = False, tokens: int = TOKENS) -> list[asyncio.Task[Ended]]:
        """Send several at once."""
        ask = self.ask
        return [asyncio.ensure_future(ask(high=high, stream=stream, tokens=tokens)) for _ in range(count)]

    async def told(self) -> None:
        """Close what is open."""
        await self._upstream.close()


Rows = dict[str, str]


async def flood(clients: Clients, *, stream: bool) -> Rows:
    """(a) 60 low at once, half a second later 8 high."""
    kind = "streams" if stream else "whole answers"
    low = clients.start(LOW, high=False, stream=stream)
    await asyncio.sleep(LATER_S)
    high = await asyncio.gather(*clients.start(HIGH, high=True, stream=stream))
    ended = await asyncio.gather(*low)
    return {
        f"60 low, then 8 high ({kind}): high waited, median / longest": _waits(high),
        f"60 low, then 8 high ({kind}): high answered": _whole(high),
        f"60 low, then 8 high ({kind}): the low ones ended": _forms(ended),
    }


async def aged(clients: Clients) -> Rows:
    """(b) A backlog that has waited for longer than the gateway's threshold, then 8 high."""
    low = clients.start(BACKLOG, high=False)
    await asyncio.sleep(AGED_S)
    high = clients.start(HIGH, high=True)
    before = {task for task in low if task.done()}
    ended = await asyncio.gather(*high)
    passed = sum(task.done() for task in low if task not in before)
    rest = await asyncio.gather(*low)
    return {
        "200 low, 8 high after 4 s, low aged after 2 s: high waited": _waits(ended),
        "200 low, 8 high after 4 s, low aged after 2 s: low that ended before the last high": str(passed),
        "200 low, 8 high after 4 s, low aged after 2 s: high answered": _whole(ended),
        "200 low, 8 high after 4 s, low aged after 2 s: the low ones ended": _forms(rest),
    }


async def full(clients: Clients) -> Rows:
    """(c) What a full queue says to 200 more."""
    holders = clients.start(ROOM + 8, high=False, tokens=40 * LONG)
    await asyncio.sleep(1.0)
    found: list[Refused] = []
    await asyncio.gather(*[_refusals(clients, found, TRIES // 20) for _ in range(20)])
    for task in holders:
        task.cancel()
    await asyncio.gather(*holders, return_exceptions=True)
    refused = [each for each in found if each.status]
    if not refused:
        return {"full queue of 16: refused": f"none of {len(found)} in {SHOWS_AFTER_S:.0f} s: no bound for its queue"}
    times = sorted(each.took_ms for each in refused)
    p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
    return {
        "full queue of 16: refused": f"{len(refused)} of {len(found)}",
        "full queue of 16: refusal p50 / p99": f"{p50:.1f} / {p99:.1f} ms",
        "full queue of 16: form": _forms_of([each.form for each in refused]),
        "full queue of 16: connection afterwards": _forms_of(
            ["closed" if each.closed else "usable" for each in refused]
        ),
    }


async def stopped(clients: Clients, *, stream: bool) -> Rows:
    """(d) Seats full of long low work, then 4 high at once; 60 short ones before, since some stop one in so many."""
    kind = "streams" if stream else "whole answers"
    await asyncio.gather(*clients.start(LOW, high=False))
    low = clients.start(12, high=False, stream=stream, tokens=LONG)
    await asyncio.sleep(LATER_S)
    high = await asyncio.gather(*clients.start(4, high=True, stream=stream))
    ended = await asyncio.gather(*low)
    return {
        f"12 low of 2 s, then 4 high ({kind}): high waited, median / longest": _waits(high),
        f"12 low of 2 s, then 4 high ({kind}): the low ones ended": _forms(ended),
    }


async def impatient(clients: Clients) -> Rows:
    """(d) Low work that waits for longer than it may, which is a second."""
    low = clients.start(8, high=False, tokens=2 * LONG)
    ended = await asyncio.gather(*low)
    return {"8 low of 4 s that may wait for 1 s: ended": _forms(ended)}


@dataclass(slots=True)
class Refused:
    """One refusal, or none in time (``status`` 0)."""

    status: int = 0
    took_ms: float = 0.0
    form: str = ""
    closed: bool = False


class _Asker(asyncio.Protocol):
    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.parser = httptools.HttpResponseParser(self)
        self.headers: dict[bytes, bytes] = {}
        self.gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        if not self.done.done():
            self.done.set_exception(ConnectionError())

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_message_complete(self) -> None:
        self.took = time.perf_counter() - self.sent
        if not self.done.done():
            self.done.set_result(None)

    def ask(self, request: bytes) -> asyncio.Future[None]:
        self.headers, self.done = {}, asyncio.get_running_loop().create_future()
        self.sent = time.perf_counter()
        self.transport.write(request)
        return self.done


async def _refusals(clients: Clients, found: list[Refused], count: int) -> None:
    where = urlsplit(clients.url)
    assert where.hostname is not None
    assert where.port is not None
    headers, body = clients.body_of(high=False, stream=False, tokens=TOKENS)
    lines = b"".join(b"%b: %b\r\n" % header for header in headers)
    host = where.netloc.encode()
    request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: %b\r\n%bcontent-length: %d\r\n\r\n%b"
    asker: _Asker | None = None
    for _ in range(count):
        if asker is None:
            _, asker = await asyncio.get_running_loop().create_connection(_Asker, where.hostname, where.port)
        one = Refused()
        found.append(one)
        try:
            async with asyncio.timeout(SHOWS_AFTER_S):
                await asker.ask(request % (host, lines, len(body), body))
        except (TimeoutError, ConnectionError):
            asker.transport.abort()
            asker = None
            continue
        one.status, one.took_ms = asker.parser.get_status_code(), asker.took * 1e3
        hint = asker.headers.get(b"retry-after")
        one.form = f"{one.status}" + (f", Retry-After {hint.decode()}" if hint else ", no Retry-After")
        await asyncio.sleep(0.05)
        one.closed = asker.gone or asker.headers.get(b"connection", b"").lower() == b"close"
        if one.closed:
            asker = None
    if asker is not None:
        asker.transport.abort()


def _waits(ended: list[Ended]) -> str:
    waits = [each.wait_s for each in ended]
    return f"{statistics.median(waits):.2f} / {max(waits):.2f} s"


def _whole(ended: list[Ended]) -> str:
    return f"{sum(each.whole for each in ended)} of {len(ended)}"


def _forms(ended: list[Ended]) -> str:
    return _forms_of([each.form for each in ended])


def _forms_of(names: list[str]) -> str:
    """Count like with like; of hints when to come again, the least and the most."""
    hints: dict[str, list[int]] = {}
    kinds: Counter[str] = Counter()
    for name in names:
        kind, found, hint = name.partition("Retry-After ")
        kinds[kind + found] += 1
        if hint:
            hints.setdefault(kind + found, []).append(int(hint))
    return "; ".join(f"{count} × {kind}{_span(hints.get(kind, []))}" for kind, count in kinds.most_common())


def _span(hints: list[int]) -> str:
    ends = sorted({min(hints), max(hints)}) if hints else []
    return "–".join(f"{end}" for end in ends) + (" s" if ends else "")
