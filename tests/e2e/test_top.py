"""``tidegate top`` shows what the gateway has: once, live in a terminal, and when the gateway goes and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from e2e.raw import Upstream, Visit, ask, chat, gateway, until
from e2e.test_control import admin, config
from tidegate.config import key_digest
from tidegate.testing.gateway_process import GatewayProcess

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.timeout(60)]


async def hang(visit: Visit) -> None:
    await visit.left.wait()


async def top(url: str, *args: str, token: str = "", columns: int = 200) -> tuple[int, str]:
    words = [sys.executable, "-m", "tidegate", "top", "--url", url, *args]
    environ = {**os.environ, "TIDEGATE_TOKEN": token, "COLUMNS": str(columns)}
    done = await asyncio.to_thread(
        subprocess.run, words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ, text=True, timeout=40
    )
    return done.returncode, done.stdout


@contextlib.asynccontextmanager
async def waiting(process: GatewayProcess, count: int) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(ask(process.url, chat())) for _ in range(count + 1)]
    await until(lambda: process.total("tidegate_queue_depth") == count, within_s=5)
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def cells(output: str, first: str) -> list[str]:
    """Cells of the table row that begins with ``first``."""
    row = next(line for line in output.splitlines() if re.match(rf"\s*{first}\s", line))
    return re.split(r"\s{2,}", row.strip())


async def test_once_prints_the_numbers_of_this_moment() -> None:
    more = "policy: {bands: {p1: {capacity: 5}}}"
    async with (
        Upstream(hang).running() as upstream,
        gateway(config(upstream.url, seats=1, more=more)) as process,
        waiting(process, 5),
    ):
        assert (await ask(process.url, chat())).status == 429
        await admin(process, "POST", "/admin/mode", {"mode": "observe", "revert_after": "10min"})
        status, output = await top(process.control)  # no terminal: once
        assert status == 0, output
        assert output.startswith("mode observe by local, back to normal in 10")
        assert "waiting 5   running 1 of 1 seats" in output
        assert cells(output, "p1")[:3] == ["p1", "5", "1"]
        assert "no_seat" in cells(output, "p1")[-1]
        assert cells(output, "b0")[:5] == ["b0", "raw", "up", "1", "1"]
        assert re.search(r"anonymous\s.*queue_full\s+429", output)


async def test_who_may_not_and_what_is_not_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        status, output = await top(f"http://127.0.0.1:{free.getsockname()[1]}")
    assert status == 1
    assert output.startswith("tidegate top: no answer from 127.0.0.1:")
    more = f"control: {{operators: [{{name: wall, token: '{key_digest('wall')}'}}]}}"
    async with Upstream(hang).running() as upstream, gateway(config(upstream.url, seats=1, more=more)) as process:
        status, output = await top(process.control, "--once", token="wrong")
        assert (status, output.startswith("tidegate top: expected the token of an operator")) == (1, True)


class Terminal:
    """A command in a terminal of its own; what it draws is collected."""

    def __init__(self, *words: str) -> None:
        self._ours, theirs = pty.openpty()
        environ = {**os.environ, "TERM": "xterm", "COLUMNS": "200", "LINES": "60"}
        self.process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, close_fds=True)
        os.close(theirs)
        self.drawn = ""
        asyncio.get_running_loop().add_reader(self._ours, self._read)

    def _read(self) -> None:
        try:
            self.drawn += os.read(self._ours, 65536).decode(errors="replace")
        except OSError:
            asyncio.get_running_loop().remove_reader(self._ours)

    async def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        status = await asyncio.to_thread(self.process.wait, 30)
        asyncio.get_running_loop().remove_reader(self._ours)
        os.close(self._ours)
        return status


async def test_in_a_terminal_it_follows_and_waits_for_a_gateway_that_went() -> None:
    async with Upstream(hang).running() as upstream:
        settings = config(upstream.url, seats=1)
        async with gateway(settings) as process:
            terminal = Terminal(sys.executable, "-m", "tidegate", "top", "--url", process.control)
            try:
                await until(lambda: "waiting 0" in terminal.drawn, within_s=8)
                async with waiting(process, 3):
                    await until(lambda: "waiting 3" in terminal.drawn, within_s=5)
                process.signal(signal.SIGKILL)
                await until(lambda: "these are the last numbers" in terminal.drawn, within_s=5)
            finally:
                status = await terminal.end()
            assert status == 0
            assert "Traceback" not in terminal.drawn
