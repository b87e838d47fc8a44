"""The URLs of a file: upstreams, receivers of traces, and the stores. All are judged here, before anything connects.

Whoever opens a store would say the same later, at the start of the gateway or in the middle of the night; ``check``
and a reload have to say it at once. A password is never shown, nor anything that may be a part of one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from tidegate.config.values import ExpectedError, is_host, nearest, text_of

_TARGET = re.compile(r"[!-~]*")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}")
_HTTP: Final = ("http", "https")
_VALKEY: Final = tuple(
    f"{kind}{setting}" for kind in ("valkey", "valkeys", "redis", "rediss") for setting in ("", "+sentinel", "+cluster")
)
_TLS: Final = ("valkeys", "rediss")
_POSTGRES: Final = ("postgresql", "postgres")
_LEDGERS: Final = (*_VALKEY, *_POSTGRES, "unix")
_STORES: Final = ("sqlite", *_POSTGRES)
_LEDGER_WANTED: Final = "expected valkey://HOST:PORT, redis://HOST:PORT, postgresql://… or unix:///PATH"
_STORE_WANTED: Final = "expected sqlite:///PATH or postgresql://USER@HOST/DATABASE"
_PORTS: Final = "expected a port from 1 to 65535"
_TLS_OPTIONS: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_SOCKET_BYTES: Final = 107
"""The longest path that the system takes for a socket."""
# Of libpq 18; it refuses what it does not know.
_POSTGRES_OPTIONS: Final = (
    "application_name channel_binding client_encoding connect_timeout dbname fallback_application_name gssdelegation "
    "gssencmode gsslib host hostaddr keepalives keepalives_count keepalives_idle keepalives_interval krbsrvname "
    "load_balance_hosts max_protocol_version min_protocol_version oauth_client_id oauth_client_secret oauth_issuer "
    "oauth_scope options passfile password port replication require_auth requirepeer scram_client_key scram_server_key "
    "service ssl ssl_max_protocol_version ssl_min_protocol_version sslcert sslcertmode sslcompression sslcrl sslcrldir "
    "sslkey sslkeylogfile sslmode sslnegotiation sslpassword sslrootcert sslsni target_session_attrs tcp_user_timeout "
    "user"
)
_SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


def parse_root_url(value: object) -> str:
    """Read the root URL of a backend: scheme, host and port, nothing else. Returns it without the last ``/``."""
    text, wanted = text_of(value), "expected a root URL, like http://10.0.0.1:8000"
    parts = _split_http_url(text, wanted, credentials="; put the credential in api_key")
    root = f"{parts.scheme}://{parts.netloc}"
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ExpectedError(f"expected the root of the backend, {root} (/v1/... is appended)", nearest=root)
    return root


def parse_url(value: object) -> str:
    """Read an http URL with its path, like that of a metrics page. No user, password or fragment."""
    text = text_of(value)
    parts = _split_http_url(text, "expected a URL, like http://10.0.0.1:8000/metrics")
    if parts.fragment or not _TARGET.fullmatch(f"{parts.path}?{parts.query}"):
        raise ExpectedError("expected a URL of printable ASCII without a fragment")
    return text


def parse_ledger_url(value: object) -> str:
    """Read the URL of a cluster's store: Valkey or Redis (alone, Sentinel, cluster), PostgreSQL, a local socket."""
    text = text_of(value)
    parts = _split_store_url(text, _LEDGER_WANTED, _LEDGERS)
    if parts.scheme == "unix":
        _check_socket(text, parts)
    elif parts.scheme in _POSTGRES:
        _check_postgres(parts)
    else:
        _check_valkey(parts)
    return text


def parse_store_url(value: object) -> str:
    """Read the URL of a store of jobs or of the control port: a file of SQLite, or PostgreSQL."""
    text = text_of(value)
    parts = _split_store_url(text, _STORE_WANTED, _STORES)
    if parts.scheme in _POSTGRES:
        _check_postgres(parts)
        return text
    path = text.removeprefix("sqlite:///")
    if path == text:
        raise ExpectedError(
            "expected sqlite:///PATH, with three slashes, and four before an absolute path", secret=True
        )
    if not path or "?" in path or "#" in path:
        raise ExpectedError("expected a path after sqlite:///, without options", secret=True)
    return text


def _split_http_url(text: str, wanted: str, *, credentials: str = "") -> SplitResult:
    """Split an http or https URL with a host and no user or password; ``credentials`` says where those belong."""
    if "@" in text.partition("?")[0]:
        raise ExpectedError(f"expected a URL without a user or password{credentials}", secret=True)
    scheme, separator, _ = text.partition("://")
    if separator and scheme.lower() not in _HTTP:
        raise ExpectedError(wanted, nearest=_near_scheme(scheme, _HTTP))
    try:
        parts = urlsplit(text)
        host = parts.hostname
    except ValueError:
        raise ExpectedError(wanted) from None
    if parts.scheme not in _HTTP or not host or not is_host(host):
        raise ExpectedError(wanted)
    _, colon, port = _host_and_port(parts.netloc)
    if colon:
        _check_port(port)
    return parts


def _split_store_url(text: str, wanted: str, schemes: Sequence[str]) -> SplitResult:
    scheme, separator, rest = text.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        raise ExpectedError(wanted, came="no scheme" if text else "")
    if scheme not in schemes:
        raise ExpectedError(wanted, came=f"{scheme}://", nearest=_near_scheme(scheme, schemes))
    if not rest:
        raise ExpectedError(wanted, came=f"{scheme}://")
    is_file = scheme in ("unix", "sqlite")
    if not text.isprintable() or (" " in text and not is_file):
        raise ExpectedError("expected a URL of printable characters without spaces", secret=True)
    try:
        parts = urlsplit(text)
    except ValueError:
        raise ExpectedError(f"{wanted}; an IPv6 address stands in brackets", secret=True) from None
    if not is_file and "@" in f"{parts.path}?{parts.query}#{parts.fragment}":
        raise ExpectedError("expected / ? # and @ in a user or password written as %2F, %3F, %23 and %40", secret=True)
    return parts


def _near_scheme(scheme: str, schemes: Sequence[str]) -> str | None:
    close = get_close_matches(scheme.lower(), schemes, n=1, cutoff=0.7)
    return f"{close[0]}://" if close else None


def _check_socket(text: str, parts: SplitResult) -> None:
    path = text.removeprefix("unix://")
    if parts.netloc or not path.startswith("/") or path == "/":
        near = f"unix:///{path.lstrip('/')}" if path.strip("/") and "@" not in path else None
        raise ExpectedError("expected unix:///PATH of a socket, with three slashes", secret=True, nearest=near)
    if parts.query or parts.fragment:
        raise ExpectedError("expected the path of a socket, without options", came=path)
    if len(path.encode()) > _SOCKET_BYTES:
        raise ExpectedError(f"expected a path of at most {_SOCKET_BYTES} bytes", came=f"{len(path.encode())} bytes")


def _check_valkey(parts: SplitResult) -> None:
    kind, _, setting = parts.scheme.partition("+")
    hosts = _hosts(parts, f"expected {parts.scheme}://HOST:PORT")
    if len(hosts) > 1 and not setting:
        others = f"{kind}+sentinel:// and {kind}+cluster://"
        raise ExpectedError(f"expected one host; several have {others}", came=f"{len(hosts)} hosts")
    if parts.fragment:
        raise ExpectedError("expected no fragment (#) in the URL", secret=True)
    path = parts.path.removeprefix("/").removesuffix("/")
    if setting == "sentinel":
        service, _, path = path.partition("/")
        if not service:
            wanted = f"expected {parts.scheme}://HOST,HOST/SERVICE, with the name by which Sentinel knows it"
            raise ExpectedError(wanted, came="no service")
    if path and not (path.isascii() and path.isdigit() and len(path) < 10):
        raise ExpectedError("expected the number of a database, from 0", came=repr(path))
    if setting == "cluster" and int(path or 0):
        raise ExpectedError("expected no database but 0, a cluster has no other", came=repr(path))
    _check_options(parts.query, _TLS_OPTIONS if kind in _TLS else (), f"of {parts.scheme}://")


def _check_postgres(parts: SplitResult) -> None:
    if parts.netloc.rpartition("@")[2]:
        _hosts(parts, f"expected {parts.scheme}://USER@HOST:PORT/DATABASE")
    options = _check_options(parts.query, _POSTGRES_OPTIONS.split(), "of PostgreSQL")
    for port in options.get("port", "").split(","):
        if port:
            _check_port(port)
    mode = options.get("sslmode", "prefer")
    if mode not in _SSL_MODES:
        expected = f"expected an sslmode of {', '.join(_SSL_MODES)}"
        raise ExpectedError(expected, came=repr(mode), nearest=nearest(mode, list(_SSL_MODES)))


def _check_options(query: str, known: Sequence[str], of: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in known:
            listed = f"one of {', '.join(known)}" if 0 < len(known) < 8 else f"one {of}" if known else "none"
            near = nearest(name, list(known))
            raise ExpectedError(f"expected no option but those known, {listed}", came=repr(name[:40]), nearest=near)
    return options


def _hosts(parts: SplitResult, wanted: str) -> list[str]:
    """Return ``host:port`` of each, judged; a host may be an IPv6 address in brackets."""
    found = parts.netloc.rpartition("@")[2].split(",")
    for each in found:
        host, colon, port = _host_and_port(each)
        if not is_host(host):
            raise ExpectedError(f"{wanted}, each with a name or an address", came=repr(each) if host else "no host")
        if colon:
            _check_port(port)
    return found


def _host_and_port(text: str) -> tuple[str, str, str]:
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return (host, rest[:1], rest[1:]) if rest[:1] in ("", ":") and ":" in host else ("", "", "")
    host, colon, port = text.partition(":")
    return host.replace("%2F", "").replace("%2f", "") if host.lower().startswith("%2f") else host, colon, port


def _check_port(text: str) -> None:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535):
        raise ExpectedError(_PORTS, came=repr(text))
