"""The processes that the demo starts: each on a free loopback port, each stopped whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import http.client
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from tidegate.core import TidegateError

_STOP_S = 5.0
_LIBC = ctypes.CDLL(None)  # loaded here: between fork and exec it is too late
_PR_SET_PDEATHSIG = 1


class ChildError(TidegateError):
    """A child ended or never became ready; the message carries the last lines that it printed."""


def free_ports(count: int) -> list[int]:
    """Find ``count`` different loopback ports that are free now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


@contextlib.asynccontextmanager
async def running(name: str, *arguments: str, port: int, path: str, log: Path) -> AsyncIterator[None]:
    """Run ``tidegate ARGUMENTS`` until the block ends; enter it once ``path`` on ``port`` answers 200.

    Args:
        name: for messages.
        arguments: of the command.
        port: loopback port that tells readiness.
        path: of the readiness answer.
        log: where the output of the child goes.

    Raises:
        ChildError: the child ended early or was not ready within 20 s.
    """
    with log.open("wb") as output:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tidegate",
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C reaches the demo alone, which stops its children in order
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )
        try:
            await _ready(child, name=name, port=port, path=path, log=log)
            yield
        finally:
            await asyncio.shield(_stop(child))


def _end_with_parent() -> None:
    """Have the kernel stop this child when the demo is killed and cannot do it itself."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


async def get(port: int, path: str) -> tuple[int, bytes]:
    """Fetch ``path`` from a loopback port: status and body. Raises ``OSError`` when nothing listens."""
    return await asyncio.to_thread(_get, port, path)


def _get(port: int, path: str) -> tuple[int, bytes]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=2.0)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()


async def _ready(child: asyncio.subprocess.Process, *, name: str, port: int, path: str, log: Path) -> None:
    loop = asyncio.get_running_loop()
    give_up = loop.time() + 20.0
    while loop.time() < give_up:
        if child.returncode is not None:
            raise ChildError(f"the {name} ended with code {child.returncode}:\n{tail(log)}")
        with contextlib.suppress(OSError, http.client.HTTPException):
            if (await get(port, path))[0] == 200:
                return
        await asyncio.sleep(0.05)
    raise ChildError(f"the {name} was not ready on port {port} within 20 s:\n{tail(log)}")


async def _stop(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(child.wait(), _STOP_S)
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
        await child.wait()


def tail(log: Path) -> str:
    """Return the last lines that a child printed."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:]) or "(it printed nothing)"
