"""Who calls: credentials to a tenant, and the checks that keep strangers from borrowing one (SPEC §3, §10).

A key is looked up by its SHA-256 digest. That leaks nothing by timing: what is compared is the digest, and whoever
does not know a key cannot steer its digest towards one in the table, so the time of a failed comparison says nothing
about any key. (A table of the keys themselves would not have this property.)

A wrong key is refused even where callers without a key are welcome: whoever sends one believes to be somebody. A few
words that client libraries want in place of a key, such as ``EMPTY``, count as no key.

A connection mostly shows one key again and again, so what it showed last and whose that was is remembered with it
(``Shown``) and compared in constant time: a proxy may carry several callers on one connection.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from hmac import compare_digest
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from tidegate.classify.outcome import Refused
from tidegate.config import ANONYMOUS
from tidegate.core import Reason

if TYPE_CHECKING:
    from tidegate.config import Settings, TenantSettings

Headers = dict[bytes, bytes]
"""Request headers by lower-case name."""

PLACEHOLDERS: Final = frozenset(
    {b"", b"empty", b"none", b"null", b"anonymous", b"not-needed", b"no-key", b"sk-no-key-required"}
)
"""What people write where a client library insists on a key, in lower case. They count as no key."""

_LONGEST_PLACEHOLDER: Final = 18
_same: Final[Callable[[bytes, bytes], bool]] = compare_digest
_KNOWN_HOSTS: Final = 16
_hosts: Final[dict[bytes, bool]] = {}
"""Hosts that were judged; few, since clients choose them."""

_FOREIGN = (b"origin", b"forwarded", b"x-forwarded-for")
_LOCAL_NAMES = frozenset({b"localhost", b"127.0.0.1", b"[::1]"})


class Tenant:
    """A caller as classification needs it. Bands are indexes, 0 is the highest."""

    __slots__ = ("band", "max_band", "name", "strict_bands", "trusted")

    def __init__(
        self, name: str, band: int, max_band: int, *, trusted: bool = False, strict_bands: bool = False
    ) -> None:
        self.name: Final = name
        self.band: Final = band
        self.max_band: Final = max_band
        self.trusted: Final = trusted
        self.strict_bands: Final = strict_bands


class Shown:
    """The key that a connection showed last, once it has proved to be a tenant's.

    It is gone with its connection: nowhere else does a key stay as it is. It counts for the ``Identities`` alone that
    found its tenant, so that a key is taken back, or given to another, at once.
    """

    __slots__ = ("by", "key", "tenant")

    def __init__(self) -> None:
        self.key = b""
        self.by: object = None  # a mark of theirs: they themselves would stay as long as the connection
        self.tenant: Tenant | None = None


class Identities:
    """Finds the tenant of a request. Built once from the settings.

    Args:
        settings: name the tenants.
        before: what was built from others; tenants that stand here and there are taken over, for there may be ten
            thousand.
    """

    def __init__(self, settings: Settings, before: Identities | None = None) -> None:
        index = {name: place for place, name in enumerate(settings.band_names)}.__getitem__
        self._settings = settings
        self._mark = object()
        known: dict[int, Tenant] = {}  # by the id of a row, which ``before`` keeps
        self._by_digest: dict[bytes, Tenant] = {}
        if before is not None and before._settings.band_names == settings.band_names:
            known = dict(zip(map(id, before._settings.tenants), before.tenants, strict=True))
            self._by_digest = before._by_digest.copy()
            kept = set(map(id, settings.tenants))
            for row in before._settings.tenants:
                if id(row) not in kept:
                    for digest in row.keys:
                        del self._by_digest[_bytes(digest)]
        self.tenants: tuple[Tenant, ...] = tuple(
            known.get(id(row)) or self._new(row, index) for row in settings.tenants
        )
        anonymous = settings.anonymous
        self.anonymous = (
            Tenant(ANONYMOUS, index(anonymous.band), index(anonymous.max_band)) if anonymous is not None else None
        )
        self._local_only = settings.gateway.listen.is_loopback
        self._local_host: bytes | None = b"localhost"  # the last one that was found good

    def _new(self, row: TenantSettings, index: Callable[[str], int]) -> Tenant:
        tenant = Tenant(
            row.name, index(row.band), index(row.max_band), trusted=row.trusted, strict_bands=row.strict_bands
        )
        for digest in row.keys:
            self._by_digest[_bytes(digest)] = tenant
        return tenant

    def identify(self, headers: Headers, shown: Shown | None = None) -> Tenant | Refused:
        """Return the tenant, or why there is none. Needs no body, so call it before reading one.

        Args:
            headers: of the request, by name.
            shown: what its connection showed before; else, and for another key, it costs a hash.
        """
        if self._local_only:
            host = headers.get(b"host")
            if host != self._local_host:
                if not is_loopback_host(host):
                    return foreign_host(host)
                self._local_host = host
        key = presented_key(headers)
        if isinstance(key, Refused):
            return key
        if key is None:
            return self._keyless(headers)
        if shown is None:
            return self._by_digest.get(sha256(key).digest()) or self._wrong_key()
        tenant = shown.tenant
        if tenant is None or shown.by is not self._mark or not _same(shown.key, key):
            tenant = self._by_digest.get(sha256(key).digest())
            if tenant is None:
                return self._wrong_key()
            shown.key, shown.by, shown.tenant = key, self._mark, tenant
        return tenant

    def _keyless(self, headers: Headers) -> Tenant | Refused:
        if self.anonymous is None:
            return _unauthorized("expected a key as Authorization: Bearer KEY, got none")
        for name in _FOREIGN:
            if name in headers:
                return _unauthorized(
                    f"expected a key, got none: a request with {name.decode()} comes through a web page or a proxy, "
                    "which may not spend another caller's rights"
                )
        return self.anonymous

    def _wrong_key(self) -> Refused:
        if self._by_digest:
            return _unauthorized("expected the key of a tenant, got one that no tenant has")
        return _unauthorized("expected no key, since no tenant is configured: leave it out or write EMPTY")


def _bytes(digest: str) -> bytes:
    return bytes.fromhex(digest.removeprefix("sha256:"))


def presented_key(headers: Headers) -> bytes | Refused | None:
    """Return the key that a request shows: ``Authorization: Bearer``, else ``api-key``, else ``x-api-key``."""
    if (value := headers.get(b"authorization")) is not None:
        if value.startswith(b"Bearer "):  # as nearly all write it
            key = value[7:].strip()
        else:
            scheme, _, key = value.strip().partition(b" ")
            if scheme.lower() != b"bearer":
                return _unauthorized("expected Authorization: Bearer KEY, got another scheme")
            key = key.strip()
        if len(key) > _LONGEST_PLACEHOLDER or key.lower() not in PLACEHOLDERS:
            return key
    for name in (b"api-key", b"x-api-key"):
        if (value := headers.get(name)) is not None and (key := value.strip()).lower() not in PLACEHOLDERS:
            return key
    return None


def is_loopback_host(host: bytes | None) -> bool:
    """Whether a ``Host`` header names this machine: ``localhost``, a name under it, or a loopback address.

    A page of another site that had its own name resolved to 127.0.0.1 still sends that name.
    """
    if host is None:
        return False
    known = _hosts.get(host)
    return _judged(host) if known is None else known


def _judged(host: bytes) -> bool:
    name, colon, port = host.rpartition(b":")
    if not colon or not port.isdigit():
        name = host
    loopback = name in _LOCAL_NAMES or _is_loopback_name(name.decode("latin-1").lower())
    if len(_hosts) >= _KNOWN_HOSTS:
        _hosts.clear()
    _hosts[host] = loopback
    return loopback


def foreign_host(host: bytes | None) -> Refused:
    """Return the refusal of a ``Host`` that is not this machine's, on a loopback address."""
    got = "none" if host is None else repr(host[:80].decode("latin-1"))
    detail = f"expected a Host that names this machine, since the gateway listens on a loopback address; got {got}"
    return Refused(Reason.BAD_REQUEST, detail, "host", status=403)


def _is_loopback_name(name: str) -> bool:
    name = name.removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def _unauthorized(detail: str) -> Refused:
    return Refused(Reason.UNAUTHORIZED, detail)
