"""An engine for tests of batches: fast, and it writes every request that it is asked into a file that survives it.

Run as ``python -m tidegate.testing.counting_engine``; ``counting_engine`` starts one, which can be killed and started
again at the same place. Each line of its file is the time (seconds of the monotonic clock), the number after the word
``row`` in the request, and the status of the answer. Lines are appended by one write each, before the answer is begun,
so that ``kill -9`` loses none. Another file, ``….ended``, has such a line for each answer, when it is given.
``POST /ends`` with a list of times (of the monotonic clock) makes it answer then, at each time whoever has waited
longest, instead of after a delay.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

from tidegate.testing.processes import wait_for_line

_ROW = re.compile(rb"\brow (\d+)")
_CHAT = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "raw",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}
_ENDED = ".ended"
_BUSY = b'{"error": {"message": "slow down", "type": "requests", "code": "rate_limit_exceeded"}}'


class Asked(NamedTuple):
    """One request: when it came (or was answered), which row it was, what it was answered."""

    at: float
    row: int
    status: int


class _Ends:
    """Answers at times that were told."""

    def __init__(self) -> None:
        self.told = False
        self._times: deque[float] = deque()
        self._open: deque[Callable[[], None]] = deque()

    def tell(self, times: Sequence[float]) -> None:
        self.told = True
        self._times.extend(times)
        self._on_time()

    def add(self, answer: Callable[[], None]) -> None:
        self._open.append(answer)

    def _on_time(self) -> None:
        while self._times and (left := self._times[0] - time.monotonic()) <= 0:
            self._times.popleft()
            if self._open:
                self._open.popleft()()
        if self._times:
            asyncio.get_running_loop().call_later(left, self._on_time)


class _Connection(asyncio.Protocol):
    def __init__(self, options: argparse.Namespace, records: tuple[int, int], began: float, ends: _Ends) -> None:
        self._options = options
        self._records = records
        self._began = began
        self._ends = ends
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop has its own

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[:end].lower()
            at = head.find(b"content-length:")
            size = int(head[at + 15 :].split(b"\r\n")[0]) if at >= 0 else 0
            if len(self._data) < end + 4 + size:
                return
            body, self._data = self._data[end + 4 : end + 4 + size], self._data[end + 4 + size :]
            if head.startswith(b"post /ends"):
                self._ends.tell(json.loads(body))
                self._say(200, b"{}")
            elif head.startswith(b"post"):
                self._asked(body)
            else:
                self._say(200, b'{"object": "list", "data": [{"id": "raw", "object": "model"}]}')

    def _asked(self, body: bytes) -> None:
        now, found = time.monotonic(), _ROW.search(body)
        row = int(found[1]) if found else -1
        status = 429 if now < self._began + self._options.busy_s else 200
        self._note(0, row, status)
        if self._ends.told:
            self._ends.add(partial(self._answer, row, status))
        elif self._options.delay_s:
            asyncio.get_running_loop().call_later(self._options.delay_s, self._answer, row, status)
        else:
            self._answer(row, status)

    def _answer(self, row: int, status: int) -> None:
        self._note(1, row, status)
        self._say(status, _BUSY if status == 429 else self._options.answer)

    def _note(self, which: int, row: int, status: int) -> None:
        if self._records[which] >= 0:
            os.write(self._records[which], b"%.6f %d %d\n" % (time.monotonic(), row, status))

    def _say(self, status: int, body: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            self._transport.write(head % (status, len(body)) + body)


async def _serve(options: argparse.Namespace) -> None:
    records = (-1, -1)
    if options.record:
        how = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        records = (os.open(options.record, how, 0o600), os.open(f"{options.record}{_ENDED}", how, 0o600))
    began, ends = time.monotonic(), _Ends()
    server = await asyncio.get_running_loop().create_server(
        lambda: _Connection(options, records, began, ends), "127.0.0.1", options.port, backlog=2048
    )
    sys.stdout.write(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--record", default="", help="file for what is asked")
    parser.add_argument("--delay-s", type=float, default=0.0, help="time until each answer")
    parser.add_argument("--busy-s", type=float, default=0.0, help="answer 429 for so long after the start")
    parser.add_argument("--answer-bytes", type=int, default=0, help="length of each answer's text")
    options = parser.parse_args()
    answer = json.loads(json.dumps(_CHAT))
    if options.answer_bytes:
        answer["choices"][0]["message"]["content"] = "x" * options.answer_bytes
    options.answer = json.dumps(answer).encode()
    try:
        import uvloop
    except ImportError:
        asyncio.run(_serve(options))
    else:
        uvloop.run(_serve(options))


class CountingEngine:
    """One engine, at one address whatever happens to it.

    Args:
        record: file for what it is asked; ``None``: nothing is written.
        options: of the command line, ``delay_s=0.03`` for ``--delay-s 0.03``.
    """

    def __init__(self, record: Path | None = None, **options: float) -> None:
        self._record = record
        pairs = ((f"--{name.replace('_', '-')}", str(value)) for name, value in options.items())
        self._options = [word for pair in pairs for word in pair]
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""
        self.start()

    def start(self) -> None:
        """Start it, again at the same port."""
        port = self.url.rpartition(":")[2] or "0"
        command = [sys.executable, "-m", "tidegate.testing.counting_engine", "--port", port, *self._options]
        if self._record is not None:
            command += ["--record", str(self._record)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)  # noqa: S603
        self.url = wait_for_line(self._process, "listening on ")

    def kill(self) -> None:
        """Kill it without a word."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def asked(self) -> list[Asked]:
        """Everything that it was asked since the first start."""
        return [] if self._record is None else _read(self._record)

    def ended(self) -> list[Asked]:
        """Every answer since the first start, those of clients that had gone included."""
        return [] if self._record is None else _read(Path(f"{self._record}{_ENDED}"))

    def end_at(self, times: Sequence[float]) -> None:
        """From now on answer at these times of the monotonic clock only, each time whoever has waited longest."""
        url = f"{self.url}/ends"
        request = urllib.request.Request(url, json.dumps(times).encode(), method="POST")  # noqa: S310 - our own url
        with urllib.request.urlopen(request, timeout=40) as answer:  # noqa: S310 - as above
            answer.read()

    def size(self) -> int:
        """Bytes of its record: they grow with each request."""
        return 0 if self._record is None or not self._record.exists() else self._record.stat().st_size

    def calls(self) -> Counter[int]:
        """How often each row was asked for."""
        return Counter(each.row for each in self.asked())


def _read(record: Path) -> list[Asked]:
    if not record.exists():
        return []
    lines = (line.split() for line in record.read_text().splitlines())
    return [Asked(float(at), int(row), int(status)) for at, row, status in lines]


@contextlib.contextmanager
def counting_engine(record: Path | None = None, **options: float) -> Iterator[CountingEngine]:
    """Run one; see ``CountingEngine``."""
    engine = CountingEngine(record, **options)
    try:
        yield engine
    finally:
        engine.kill()


if __name__ == "__main__":
    main()
