"""Start and stop the simulated engine: as a process of its own, or inside a test's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import uvicorn

from tidegate.simserver.app import EngineApp
from tidegate.simserver.options import EngineOptions


class _Server(uvicorn.Server):
    """uvicorn that says when it listens and leaves signals alone where it is only a guest in somebody's loop."""

    def __init__(self, app: EngineApp, sock: socket.socket, listening: Callable[[], None], *, guest: bool) -> None:
        config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_level="critical",  # cutting an answer short is a feature here, not an error to print
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=60,
            timeout_graceful_shutdown=0,
            backlog=4096,
        )
        super().__init__(config)
        self._sock = sock
        self._listening = listening
        self._guest = guest

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if self._guest:
            yield
        else:
            with super().capture_signals():
                yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listening()


def _bind(options: EngineOptions) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((options.host, options.port))
    except OSError as error:
        sock.close()
        raise OSError(error.errno, error.strerror, f"{options.host}:{options.port}") from None
    return sock


def _url(sock: socket.socket, host: str) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{sock.getsockname()[1]}"


async def _serve(app: EngineApp, server: _Server, sock: socket.socket) -> None:
    steps = asyncio.create_task(app.run(), name="engine-steps")
    serving = asyncio.create_task(server.serve(sockets=[sock]), name="engine-http")
    try:
        # The steps never end by themselves: if they do, it is with the error that has to be seen.
        await asyncio.wait({steps, serving}, return_when=asyncio.FIRST_COMPLETED)
        if steps.done():
            await steps
    finally:
        server.should_exit = True
        await serving
        steps.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await steps


def serve_engine(options: EngineOptions, *, announce: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; ``announce`` is told the address once it is open.

    Raises:
        ValueError: options that contradict each other.
        OSError: the address cannot be taken.
    """
    app = EngineApp(options)
    sock = _bind(options)
    server = _Server(app, sock, lambda: announce(_url(sock, options.host)), guest=False)
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(_serve(app, server, sock))


@contextlib.asynccontextmanager
async def running_engine(options: EngineOptions | None = None) -> AsyncIterator[tuple[str, EngineApp]]:
    """Serve inside the running event loop; yields the address and the app."""
    options = options or EngineOptions()
    app = EngineApp(options)
    sock = _bind(options)
    listening = asyncio.Event()
    server = _Server(app, sock, listening.set, guest=True)
    serving = asyncio.create_task(_serve(app, server, sock))
    try:
        opened = asyncio.create_task(listening.wait())
        await asyncio.wait({opened, serving}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            opened.cancel()
            await serving
        yield _url(sock, options.host), app
    finally:
        server.should_exit = True
        await serving
