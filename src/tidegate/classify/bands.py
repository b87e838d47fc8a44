"""Which band a request runs in (SPEC §3): first matching rule, else header, else service tier, else the tenant's own.

Then the tenant's ``max_band`` clamps it. Words are read as they are and never guessed at: an unknown one is a 400
that lists what is allowed, because a typing error that silently ran a payment in the batch band is found too late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw

from tidegate.classify.fields import ParsedBody
from tidegate.classify.identity import Headers, Tenant
from tidegate.classify.outcome import Refused
from tidegate.config import matches
from tidegate.core import Reason

if TYPE_CHECKING:
    from tidegate.config import RuleMatch, Settings

BAND_HEADER = b"x-tidegate-band"
OBJECTIVE_HEADERS = (b"x-llm-d-inference-objective", b"x-gateway-inference-objective")
PRIORITY_HEADERS = (b"x-smg-priority", b"x-request-priority")
BAND_HEADERS = (BAND_HEADER, *OBJECTIVE_HEADERS, *PRIORITY_HEADERS)

_OWN: Final = -1
"""The tenant's own band, where a word asks for nothing special."""

_FIELDS = msgspec.json.Decoder(dict[str, Raw])


class Choice:
    """The band of a request, after the clamp; ``clamped`` when it asked for a higher one."""

    __slots__ = ("band", "clamped")

    def __init__(self, band: int, *, clamped: bool) -> None:
        self.band: Final = band
        self.clamped: Final = clamped


class _Rule:
    __slots__ = ("band", "tests")

    def __init__(self, tests: tuple[Callable[[_Asked], bool], ...], band: int) -> None:
        self.tests: Final = tests
        self.band: Final = band

    def holds(self, asked: _Asked) -> bool:
        for test in self.tests:  # noqa: SIM110  (a generator costs more than the tests)
            if not test(asked):
                return False
        return True


class _Asked:
    """What the rules look at."""

    __slots__ = ("body", "fields", "headers", "model", "path")

    def __init__(self, headers: Headers, path: str, model: str, body: ParsedBody) -> None:
        self.headers: Final = headers
        self.path: Final = path
        self.model: Final = model
        self.body: Final = body
        self.fields: dict[str, Raw] | None = None

    def metadata(self) -> dict[str, Raw]:
        """The fields of the body's ``metadata``, read at most once."""
        if self.fields is None:
            self.fields = _metadata(self.body.metadata)
        return self.fields


class BandChooser:
    """Chooses bands. Built once from the settings; rules are sorted by tenant beforehand."""

    def __init__(self, settings: Settings, tenants: tuple[Tenant, ...]) -> None:
        names = settings.band_names
        self.names = names
        self._as_asked = tuple(Choice(band, clamped=False) for band in range(len(names)))
        bulk = names.index("p2") if "p2" in names else len(names) - 1
        self._bulk = bulk
        own = {name: position for position, name in enumerate(names)}
        objectives = {name.lower(): settings.band_index(band) for name, band in settings.objectives.items()}
        words = {"system": 0, "interactive": 0, "critical": 0, "high": 0}
        words |= dict.fromkeys(("default", "medium", "normal"), _OWN) | dict.fromkeys(("bulk", "batch", "low"), bulk)
        self._headers = (
            (BAND_HEADER, own),
            *((name, own | objectives) for name in OBJECTIVE_HEADERS),
            *((name, words | own) for name in PRIORITY_HEADERS),
        )
        self._tiers = {"priority": 0, "fast": 0, "default": _OWN, "auto": _OWN, "scale": _OWN, "flex": bulk}
        self._rules = {tenant.name: _rules_of(settings, tenant.name) for tenant in tenants}

    def choose(
        self, tenant: Tenant, *, headers: Headers, words: Headers, path: str, model: str, body: ParsedBody
    ) -> Choice | Refused:
        """Return the band of a request, or why it gets none. ``words`` are headers in which a band may stand."""
        rules = self._rules.get(tenant.name)
        ruled = _by_rule(rules, _Asked(headers, path, model, body)) if rules else None
        asked = ruled if ruled is not None else self._by_words(words, body)
        if isinstance(asked, Refused):
            return asked
        if asked == _OWN:
            asked = tenant.band
        if asked >= tenant.max_band:
            return self._as_asked[asked]
        if tenant.strict_bands:
            most, wanted = self.names[tenant.max_band], self.names[asked]
            detail = f"expected a band of at most {most} for tenant {tenant.name}, got {wanted}"
            return Refused(Reason.FORBIDDEN_BAND, detail)
        return Choice(tenant.max_band, clamped=True)

    def tier_of(self, band: int) -> str:
        """Return the service tier to report for a band: what was really used."""
        if band == 0:
            return "priority"
        return "flex" if band >= self._bulk else "default"

    def _by_words(self, headers: Headers, body: ParsedBody) -> int | Refused:
        if headers:
            for name, words in self._headers:
                if name in headers:
                    word = headers[name].decode("latin-1").strip().lower()
                    band = words.get(word)
                    return band if band is not None else _unknown(name.decode(), word, words)
        tier = body.service_tier
        if not isinstance(tier, str):
            return _OWN
        band = self._tiers.get(tier.lower())
        return band if band is not None else _unknown("service_tier", tier, self._tiers)


def _by_rule(rules: tuple[_Rule, ...], asked: _Asked) -> int | None:
    for rule in rules:
        if rule.holds(asked):
            return rule.band
    return None


def _unknown(where: str, word: str, allowed: dict[str, int]) -> Refused:
    detail = f"{where}: expected one of {', '.join(allowed)}; got {word[:64]!r}"
    return Refused(Reason.BAD_REQUEST, detail, where)


def _rules_of(settings: Settings, tenant: str) -> tuple[_Rule, ...]:
    """Return the rules that can match a tenant, in order, without their condition on it."""
    return tuple(
        _Rule(tuple(_tests(rule.when)), settings.band_index(rule.band))
        for rule in settings.rules
        if rule.when.tenant is None or _any(rule.when.tenant, tenant)
    )


def _tests(when: RuleMatch) -> list[Callable[[_Asked], bool]]:
    tests: list[Callable[[_Asked], bool]] = []
    if when.path is not None:
        tests.append(_path_test(when.path))
    if when.model is not None:
        tests.append(_model_test(when.model))
    for name, patterns in (when.header or {}).items():
        tests.append(_header_test(name.encode("latin-1"), patterns))
    if when.metadata is not None:
        tests.append(_metadata_test(when.metadata))
    return tests


def _path_test(patterns: tuple[str, ...]) -> Callable[[_Asked], bool]:
    return lambda asked: _any(patterns, asked.path)


def _model_test(patterns: tuple[str, ...]) -> Callable[[_Asked], bool]:
    return lambda asked: _any(patterns, asked.model)


def _header_test(name: bytes, patterns: tuple[str, ...]) -> Callable[[_Asked], bool]:
    def test(asked: _Asked) -> bool:
        value = asked.headers.get(name)
        return value is not None and _any(patterns, value.decode("latin-1").strip())

    return test


def _metadata_test(wanted: dict[str, tuple[str, ...]]) -> Callable[[_Asked], bool]:
    def test(asked: _Asked) -> bool:
        fields = asked.metadata() if asked.body.metadata else {}
        return all(name in fields and _any(patterns, _as_text(fields[name])) for name, patterns in wanted.items())

    return test


def _metadata(raw: Raw) -> dict[str, Raw]:
    try:
        return _FIELDS.decode(raw) if raw else {}
    except (msgspec.DecodeError, RecursionError):
        return {}


def _as_text(raw: Raw) -> str:
    """Return a metadata value as a rule writes it: the string itself, or the JSON of a number, ``true``, ``false``."""
    text = bytes(raw)
    if text.startswith(b'"'):
        value: str = msgspec.json.decode(text, type=str)
        return value
    return text.decode()


def _any(patterns: tuple[str, ...], value: str) -> bool:
    return value in patterns or any(matches(pattern, value) for pattern in patterns)
