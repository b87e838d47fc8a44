"""Open the store of shared pools that a setting names (``cluster.store``)."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from tidegate.stores.errors import StoreError
from tidegate.stores.ledger_memory import MemoryLedgerStore
from tidegate.stores.ledger_protocol import LedgerStore

_VALKEY = tuple(
    f"{kind}{setting}" for kind in ("valkey", "valkeys", "redis", "rediss") for setting in ("", "+sentinel", "+cluster")
)
_POSTGRES = ("postgresql", "postgres")


def open_ledger(url: str) -> LedgerStore:
    """Return the ledgers of a URL. Nothing is connected before the first call.

    Args:
        url: ``memory://`` (this process alone), ``unix:///path`` (what ``serve_ledger`` serves there),
            ``valkey://host:port/database`` or ``redis://``, with TLS ``valkeys://`` or ``rediss://``,
            ``valkey+sentinel://host,host/SERVICE``, ``valkey+cluster://host,host``, ``postgresql://``.

    Raises:
        StoreError: nobody knows such a URL, it lacks something, or its driver is not installed; says what to do.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise StoreError(f"cluster.store: expected a URL, got one that cannot be read: {error}") from error
    if parts.scheme == "memory":
        return MemoryLedgerStore()
    if parts.scheme == "unix":
        return _socket(parts)
    if parts.scheme in _VALKEY:
        from tidegate.stores.ledger_valkey import ValkeyLedgerStore
        from tidegate.stores.ledger_valkey_link import open_link

        return ValkeyLedgerStore(open_link(parts))
    if parts.scheme in _POSTGRES:
        from tidegate.stores.ledger_postgres import PostgresLedgerStore

        return PostgresLedgerStore(url)
    raise StoreError(
        f"cluster.store: expected memory://, unix://, valkey://, redis://, valkeys://, valkey+sentinel://, "
        f"valkey+cluster:// or postgresql://, got {parts.scheme or 'no scheme'!r}"
    )


def _socket(parts: SplitResult) -> LedgerStore:
    from tidegate.stores.ledger_socket import SocketLedgerStore

    if parts.netloc or not parts.path.startswith("/"):
        raise StoreError("cluster.store: expected unix:///path/of/the/socket, with three slashes")
    return SocketLedgerStore(parts.path)
