"""Speak to Valkey, or Redis, alone, behind Sentinel, or as a cluster, with the client library valkey-py.

Needs the extra ``valkey``. The library's asyncio part knows no sharded channels, so a channel is read on a connection
of its own, command by command; that is the same in all three settings. Nothing is tried again here, but for a cluster
whose slots have moved: callers are told, and report anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Final, Protocol
from urllib.parse import SplitResult, parse_qsl, unquote

from tidegate.stores.errors import StoreError
from tidegate.stores.ledger_handle import CALL_S
from tidegate.stores.ledger_protocol import LedgerUnavailable

try:
    from valkey import exceptions
    from valkey.asyncio import Valkey, ValkeyCluster
    from valkey.asyncio.cluster import ClusterNode
    from valkey.asyncio.sentinel import Sentinel
except ImportError as error:
    raise StoreError("a ledger in Valkey needs the client valkey: pip install 'tidegate[valkey]'") from error

Refused = exceptions.ResponseError
"""The server's answer to a command is an error."""
_AWAY: Final = (exceptions.ValkeyError, exceptions.ValkeyClusterException, OSError, TimeoutError)
"""What the library raises; of a cluster none of whose nodes answers, something that is no ``ValkeyError``."""
_SENTINEL_PORT: Final = 26379
_PORT: Final = 6379
_TLS_OPTIONS: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turn the library's errors into ours."""
    try:
        yield
    except (exceptions.AuthenticationError, exceptions.AuthorizationError, exceptions.NoPermissionError) as error:
        raise StoreError(f"cluster.store: Valkey does not let us in: {error}") from error
    except (*_AWAY, asyncio.IncompleteReadError) as error:
        raise LedgerUnavailable(f"cluster.store: Valkey: {error}") from error


class Link(Protocol):
    """A way to the server that holds a key. ``publish``: the command that reaches subscribers there."""

    publish: str

    async def call(self, key: str, *command: Any) -> Any:
        """Send a command to the server of ``key``; raise the library's errors."""
        ...

    def listen(
        self, key: str, channel: str, *, every_s: float
    ) -> contextlib.AbstractAsyncContextManager[AsyncIterator[bytes | None]]:
        """Subscribe to a channel: ``None`` when the server has confirmed it, then the messages.

        The iteration raises ``LedgerUnavailable`` when the connection breaks, or is silent though asked
        ``every_s`` seconds.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class SingleLink:
    """One server, or the one that Sentinel names."""

    publish = "PUBLISH"

    def __init__(self, client: Valkey, *, sentinels: Sequence[Any] = (), call_s: float = CALL_S) -> None:
        self._client: Any = client  # the library is typed in part
        self._sentinels = sentinels
        self._call_s = call_s

    async def call(self, key: str, *command: Any) -> Any:  # noqa: ARG002 - all keys are on one server
        """Send a command."""
        async with asyncio.timeout(self._call_s):
            return await self._client.execute_command(*command)

    @contextlib.asynccontextmanager
    async def listen(self, key: str, channel: str, *, every_s: float) -> AsyncIterator[AsyncIterator[bytes | None]]:  # noqa: ARG002
        """Subscribe to a channel."""
        async with _listening(
            self._client.connection_pool.make_connection(), "SUBSCRIBE", channel, every_s
        ) as messages:
            yield messages

    async def close(self) -> None:
        """Close all connections."""
        for client in (self._client, *self._sentinels):
            await client.aclose()
            await client.connection_pool.disconnect()


class ClusterLink:
    """A cluster: each pool's keys lie in one slot, and its channels are sharded, so they are where its keys are."""

    publish = "SPUBLISH"

    def __init__(self, client: ValkeyCluster) -> None:
        self._client = client

    async def call(self, key: str, *command: Any) -> Any:
        """Send a command to the node of ``key``; once more when the slot has moved, or its node is gone."""
        async with asyncio.timeout(CALL_S):
            try:
                return await (await self._node(key)).execute_command(*command)
            except (
                exceptions.MovedError,
                exceptions.AskError,
                exceptions.ConnectionError,
                exceptions.ClusterDownError,
            ):
                await self._look_again()
                return await (await self._node(key)).execute_command(*command)

    @contextlib.asynccontextmanager
    async def listen(self, key: str, channel: str, *, every_s: float) -> AsyncIterator[AsyncIterator[bytes | None]]:
        """Subscribe to a sharded channel."""
        with translated():
            node = await self._node(key)
        connection = node.connection_class(**node.connection_kwargs)
        async with _listening(connection, "SSUBSCRIBE", channel, every_s) as messages:
            try:
                yield messages
            except LedgerUnavailable:
                with translated():
                    await self._look_again()
                raise

    async def _node(self, key: str) -> ClusterNode:
        await self._client.initialize()
        node = self._client.get_node_from_key(key)
        if node is None:
            raise exceptions.ConnectionError(f"no node of the cluster has the slot of {key}")
        return node

    async def _look_again(self) -> None:
        await self._client.initialize()
        await self._client.nodes_manager.initialize()

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()


@contextlib.asynccontextmanager
async def _listening(
    connection: Any, command: str, channel: str, every_s: float
) -> AsyncIterator[AsyncIterator[bytes | None]]:
    pinging: asyncio.Task[None] | None = None
    try:
        with translated():
            async with asyncio.timeout(CALL_S):
                await connection.connect()
                await connection.send_command(command, channel)
        pinging = asyncio.get_running_loop().create_task(_ping(connection, every_s))
        yield _messages(connection)
    finally:
        if pinging is not None:
            pinging.cancel()
            await asyncio.gather(pinging, return_exceptions=True)
        with contextlib.suppress(*_AWAY):
            await connection.disconnect()


async def _messages(connection: Any) -> AsyncIterator[bytes | None]:
    while True:
        with translated():
            message = await connection.read_response(disable_decoding=True)
        if isinstance(message, list) and message[0] in {b"subscribe", b"ssubscribe"}:
            yield None
        elif isinstance(message, list) and message[0] in {b"message", b"smessage"}:
            yield message[2]
        elif isinstance(message, list) and message[0] in {b"unsubscribe", b"sunsubscribe"}:
            raise LedgerUnavailable("cluster.store: the slot of the channel has moved")


async def _ping(connection: Any, every_s: float) -> None:
    """Make the server speak, so that its silence is noticed; whoever reads notices errors."""
    with contextlib.suppress(*_AWAY):
        while True:
            await asyncio.sleep(every_s)
            await connection.send_command("PING")


def open_link(url: SplitResult, *, call_s: float = CALL_S) -> Link:
    """Return the way to the servers of a URL; nothing is connected yet.

    Args:
        url: as in the settings.
        call_s: the longest that a call to a server alone takes.

    Raises:
        StoreError: the URL lacks something.
    """
    kind, _, setting = url.scheme.partition("+")
    options = _options(url, tls=kind in {"valkeys", "rediss"}, call_s=call_s)
    if setting == "sentinel":
        return _behind_sentinel(url, options)
    host, port = _addresses(url, _PORT)[0]
    if setting == "cluster":
        return _cluster(url, options)
    return SingleLink(Valkey(host=host, port=port, db=_database(url.path), **options), call_s=call_s)


def _cluster(url: SplitResult, options: dict[str, Any]) -> Link:
    nodes = [ClusterNode(host, port) for host, port in _addresses(url, _PORT)]
    return ClusterLink(ValkeyCluster(startup_nodes=nodes, cluster_error_retry_attempts=0, **options))


def _behind_sentinel(url: SplitResult, options: dict[str, Any]) -> Link:
    service, _, database = url.path.strip("/").partition("/")
    if not service:
        raise StoreError("cluster.store: expected the name of the service behind Sentinel: valkey+sentinel://host/NAME")
    sentinel: Any = Sentinel(_addresses(url, _SENTINEL_PORT), **options)  # type: ignore[no-untyped-call]
    return SingleLink(sentinel.master_for(service, db=_database(database)), sentinels=sentinel.sentinels)


def _options(url: SplitResult, *, tls: bool, call_s: float) -> dict[str, Any]:
    options: dict[str, Any] = {"socket_timeout": call_s / 2, "socket_connect_timeout": call_s / 2}
    if url.username:
        options["username"] = unquote(url.username)
    if url.password:
        options["password"] = unquote(url.password)
    asked = dict(parse_qsl(url.query))
    if tls:
        options["ssl"] = True
        options |= {name: asked.pop(name) for name in _TLS_OPTIONS if name in asked}
        options["ssl_check_hostname"] = True
        options["ssl_min_version"] = ssl.TLSVersion.TLSv1_2
    if asked:
        raise StoreError(
            f"cluster.store: unknown option {sorted(asked)[0]!r}; known with TLS: {', '.join(_TLS_OPTIONS)}"
        )
    return options


def _addresses(url: SplitResult, port: int) -> list[tuple[str, int]]:
    """Read ``host[:port][,host[:port]...]``; a host may be an IPv6 address in brackets."""
    addresses = []
    for each in url.netloc.rpartition("@")[2].split(","):
        parts = SplitResult("", each, "", "", "")
        try:
            addresses.append((parts.hostname or "localhost", parts.port or port))
        except ValueError as error:
            raise StoreError(f"cluster.store: expected host:port, got {each!r}") from error
    return addresses


def _database(path: str) -> int:
    text = path.strip("/")
    if text and not text.isdigit():
        raise StoreError(f"cluster.store: expected the number of a database, got {text!r}")
    return int(text or 0)
