"""One uvicorn server in a loop it does not own: no signal handlers, its real address, a sweep of slow clients."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Generator
from typing import Any, cast

import uvicorn

from tidegate.config import Address
from tidegate.gateway.application import Application, AsgiApp, as_task
from tidegate.gateway.limits import Limits
from tidegate.gateway.protocol import client_protocol, sweep
from tidegate.runtime import Parted, Rounds

SWEEP_S = 1.0
"""Time between two looks at a connection: the precision of the limits on slow clients."""

LAST_TURNS = 10
"""Of the loop, for what is left when the server ends."""


class ClientServer(uvicorn.Server):
    """Serve an ``app``, ASGI's or ours, to clients within ``limits``; ``start`` and ``stop`` instead of ``run``.

    With ``listener``, a socket that listens already, nothing is bound.
    """

    def __init__(
        self,
        app: Application | AsgiApp,
        *,
        address: Address,
        limits: Limits,
        tls: ssl.SSLContext | None = None,
        listener: socket.socket | None = None,
    ) -> None:
        config = uvicorn.Config(
            # uvicorn only hands it to each connection.
            cast(AsgiApp, app) if isinstance(app, Application) else as_task(app),
            interface="asgi3",
            http=client_protocol(limits),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=round(limits.keep_alive_s),
            timeout_graceful_shutdown=1,
            backlog=4096,
            ssl_context_factory=None if tls is None else lambda _config, _default: tls,
        )
        super().__init__(config)
        self._address = address
        self._given = listener
        self._socket: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None
        self._connections = connections = Parted[Any]()
        self.server_state.connections = connections  # type: ignore[assignment]  # a set as far as uvicorn uses it
        self._sweeper = Rounds(SWEEP_S, connections, sweep)

    @property
    def url(self) -> str:
        """Where it listens, with the real port; ``start`` must have been called."""
        assert self._socket is not None
        scheme = "https" if self.config.is_ssl else "http"
        return f"{scheme}://{Address(self._address.host, self._socket.getsockname()[1])}"

    @property
    def connected(self) -> int:
        """How many clients are connected, with or without a request."""
        return len(self._connections)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals to the process: it has two servers and one driver to stop in order."""
        yield

    async def start(self) -> None:
        """Bind and accept. Raises ``OSError`` when the address is taken."""
        host, port = self._address
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = self._given or socket.create_server((host, port), family=family, backlog=self.config.backlog)
        listener.settimeout(0)
        self._socket = listener
        self._serving = asyncio.get_running_loop().create_task(self.serve(sockets=[listener]))
        while not self.started:
            if self._serving.done():
                self._serving.result()
                raise OSError(f"the server on {self._address} ended while it started")
            await asyncio.sleep(0)
        self._sweeper.start(asyncio.get_running_loop())

    def stop_accepting(self) -> None:
        """Close the listening socket; open connections go on, and each ends with its answer."""
        for server in self.servers:
            server.close()
        for connection in tuple(self.server_state.connections):
            connection.shutdown()

    async def stop(self) -> None:
        """End what is left and wait for it, about a second at most."""
        self.should_exit = True
        self._sweeper.stop()
        if self._serving is not None:
            await self._serving
        for _ in range(LAST_TURNS):  # for requests that have been cancelled: no loop knows of them when it is closed
            if not self.server_state.tasks:
                break
            await asyncio.sleep(0)
