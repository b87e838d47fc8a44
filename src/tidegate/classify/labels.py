"""What a request says about itself in headers: its name, what it depends on, how long it may wait, its language."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from tidegate.classify.identity import Headers, Tenant
from tidegate.classify.outcome import Refused
from tidegate.core import Reason
from tidegate.core.compiling import mypyc_attr

TTL_HEADERS = (b"x-tidegate-ttl", b"x-llm-d-inference-ttl")
READ_TIMEOUT_HEADER = b"x-stainless-read-timeout"
FAIRNESS_HEADERS = (
    b"x-tidegate-fairness-id",
    b"x-llm-d-inference-fairness-id",
    b"x-gateway-inference-fairness-id",
)
DEPENDS_HEADER = b"x-tidegate-depends-on"
NAME_HEADER = b"x-request-id"
LANGUAGE_HEADER = b"accept-language"
KEY_HEADER = b"idempotency-key"
MAX_DEPENDENCIES = 64
"""Most names in one ``x-tidegate-depends-on``: each is looked up at every arrival."""

_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_FULL_NAME = re.compile(r"(?:[A-Za-z0-9._:-]{1,128}/)?[A-Za-z0-9._:-]{1,128}")
_DURATION = re.compile(r"(-?)(\d{1,12}(?:\.\d{0,12})?)(ms|s|min|h|d)?")
_UNIT_S = {None: 1.0, "ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_MAX_FAIRNESS_ID = 128
_MAX_KEY = 255
LABELS: Final = frozenset(
    {*TTL_HEADERS, READ_TIMEOUT_HEADER, *FAIRNESS_HEADERS, DEPENDS_HEADER, NAME_HEADER, LANGUAGE_HEADER, KEY_HEADER}
)
"""Headers by which a request says something about itself."""


@mypyc_attr(acyclic=True)
class Labels:
    """All of it together; see ``Classified``. Empty names: it says none."""

    __slots__ = ("deadline_s", "depends_on", "flow", "idempotency_key", "language", "request_id", "ttl_s")

    def __init__(
        self,
        request_id: str = "",
        flow: str = "",
        ttl_s: float | None = None,
        deadline_s: float | None = None,
        depends_on: tuple[str, ...] = (),
        *,
        language: str = "en",
        idempotency_key: str = "",
    ) -> None:
        self.request_id: Final = request_id
        self.flow: Final = flow
        self.ttl_s: Final = ttl_s
        self.deadline_s: Final = deadline_s
        self.depends_on: Final = depends_on
        self.language: Final = language
        self.idempotency_key: Final = idempotency_key


_NOTHING_SAID: Final = Labels()


def read_labels(headers: Headers, tenant: Tenant) -> Labels | Refused:
    """Return what a request of ``tenant`` says about itself,."""
    if not headers:
        return _NOTHING_SAID
    limits = time_limits(headers)
    if isinstance(limits, Refused):
        return limits
    depends_on = dependencies(headers)
    if isinstance(depends_on, Refused):
        return depends_on
    return Labels(
        request_name(headers),
        fairness_id(headers, tenant),
        limits[0],
        limits[1],
        depends_on,
        language=language(headers),
        idempotency_key=headers.get(KEY_HEADER, b"").decode("latin-1")[:_MAX_KEY],
    )


def request_name(headers: Headers) -> str:
    """Return the request's own name (``x-request-id``), empty when it has none or one that may not be used."""
    value = headers.get(NAME_HEADER)
    if value is None:
        return ""
    name = value.decode("latin-1")
    return name if _NAME.fullmatch(name) else ""


def dependencies(headers: Headers) -> tuple[str, ...] | Refused:
    """Return the names that must be done first, each once, in the order given."""
    value = headers.get(DEPENDS_HEADER)
    if value is None:
        return ()
    names = [name.strip() for name in value.decode("latin-1").split(",")]
    where = DEPENDS_HEADER.decode()
    for name in names:
        if not _FULL_NAME.fullmatch(name):
            return Refused(
                Reason.BAD_REQUEST,
                f"{where}: expected names of 1 to 128 letters, digits or . _ : - (tenant/name across tenants), "
                f"separated by commas; got {name[:64]!r}",
                where,
            )
    if len(names) > MAX_DEPENDENCIES:
        return Refused(
            Reason.BAD_REQUEST, f"{where}: expected at most {MAX_DEPENDENCIES} names, got {len(names)}", where
        )
    return tuple(dict.fromkeys(names))


def fairness_id(headers: Headers, tenant: Tenant) -> str:
    """Return the flow of a request: the tenant, unless a trusted tenant names another."""
    if tenant.trusted:
        for name in FAIRNESS_HEADERS:
            if value := headers.get(name):
                return value.decode("latin-1").strip()[:_MAX_FAIRNESS_ID] or tenant.name
    return tenant.name


def time_limits(headers: Headers) -> tuple[float | None, float | None] | Refused:
    """Return how long the request may wait for its dispatch, and the client's own deadline, in seconds from now.

    The wait is the least of all the headers. The deadline is the read timeout of the official Python client, which
    gives up then whatever we do. A value of ours that cannot be read is refused; one that the client's library wrote
    is not the user's mistake and is passed over.
    """
    ttl: float | None = None
    for name in TTL_HEADERS:
        if (value := headers.get(name)) is None:
            continue
        seconds = parse_ttl(value)
        if seconds is None:
            return _silly(name, value)
        ttl = seconds if ttl is None else min(ttl, seconds)
    deadline = parse_ttl(value) if (value := headers.get(READ_TIMEOUT_HEADER)) is not None else None
    if deadline is not None:
        ttl = deadline if ttl is None else min(ttl, deadline)
    if ttl is not None and ttl <= 0:
        return Refused(Reason.EXPIRED, "the time that the request allows for waiting is already past")
    return ttl, deadline


@lru_cache(maxsize=1024)
def parse_ttl(value: bytes) -> float | None:
    """Read ``250ms``, ``15s``, ``30min``, ``24h``, ``7d`` or a bare number of seconds; ``None`` for anything else.

    A negative time is one already past, as computed by a client from a deadline of its own.
    """
    match = _DURATION.fullmatch(value.decode("latin-1").strip())
    if match is None:
        return None
    seconds = float(match[2]) * _UNIT_S[match[3]]
    return -seconds if match[1] else seconds


def language(headers: Headers) -> str:
    """Return ``zh`` or ``en``, whichever ``Accept-Language`` ranks higher; ``en`` when it says nothing of either."""
    value = headers.get(LANGUAGE_HEADER)
    if value is None or b"zh" not in value.lower():
        return "en"
    best = {"zh": 0.0, "en": 0.0}
    for item in value.decode("latin-1").lower().split(",")[:32]:
        tag, _, parameters = item.partition(";")
        primary = tag.strip().partition("-")[0]
        if primary in best:
            best[primary] = max(best[primary], _quality(parameters))
    return "zh" if best["zh"] > best["en"] or (best["zh"] == best["en"] > 0 and _first(value) == "zh") else "en"


def _quality(parameters: str) -> float:
    name, _, value = parameters.strip().partition("=")
    if name.strip() != "q":
        return 1.0
    try:
        return min(max(float(value), 0.0), 1.0)
    except ValueError:
        return 0.0


def _first(value: bytes) -> str:
    text = value.decode("latin-1").lower()
    zh, en = text.find("zh"), text.find("en")
    return "zh" if en < 0 or 0 <= zh < en else "en"


def _silly(name: bytes, value: bytes) -> Refused:
    where = name.decode()
    got = value[:64].decode("latin-1")
    return Refused(
        Reason.BAD_REQUEST,
        f"{where}: expected a duration like 250ms, 15s, 30min or 24h, or a bare number of seconds; got {got!r}",
        where,
    )
