"""What no single value can know: names that must exist, be unique, or agree with each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from tidegate.config.errors import Problem
from tidegate.config.schema import ANONYMOUS, WILDCARD, AnonymousSettings, Settings, TenantSettings
from tidegate.config.shape import locate
from tidegate.config.tree import Map, Path_, Scalar, describe, dotted
from tidegate.config.values import nearest

_BANDS = [f"p{index}" for index in range(8)]


def cross_check(settings: Settings, tree: Map) -> list[Problem]:
    """Return every contradiction between settings, each with its place in ``tree``."""
    found = chain(
        _bands(settings),
        _clamps(settings),
        _models(settings),
        _backends(settings),
        _tenants(settings),
        _rules(settings),
        _addresses(settings),
    )
    return [_placed(tree, finding) for finding in found]


_Finding = tuple[Path_, str, str, str | None]
"""Path, what was expected, what came, the nearest name."""


def _placed(tree: Map, finding: _Finding) -> Problem:
    path, expected, came, hint = finding
    node, mark = locate(tree, path)
    if came and isinstance(node, Scalar):
        came = describe(node)  # as written: what the environment filled in is not shown
    return Problem(dotted(path), expected, came, hint, mark)


def _bands(settings: Settings) -> Iterator[_Finding]:
    names = settings.band_names
    for index, name in enumerate(names):
        path: Path_ = ("policy", "bands", name)
        if name not in _BANDS:
            yield path, "expected a band from p0 (highest) to p7", repr(name), nearest(name, _BANDS)
        elif name != _BANDS[index]:
            yield path, f"expected the bands without a gap, {_BANDS[index]} is missing", "", None
        band = settings.policy.bands[name]
        if index and band.floor is None:
            expected = "expected a floor (a part like 0.05), or `floor: 0` to say that the band may wait for ever"
            yield path, expected, "", None
        if index == len(names) - 1 and band.reserve:
            yield (*path, "reserve"), "expected 0, no band is below the lowest", str(band.reserve), None
    for model_index, model in enumerate(settings.models):
        seats = sum(backend.seats for backend in model.backends)
        for name, band in settings.policy.bands.items():
            if band.reserve >= seats:
                expected = f"expected at most {seats - 1}, one less than the seats of models[{model_index}]"
                yield ("policy", "bands", name, "reserve"), expected, str(band.reserve), None


def _clamps(settings: Settings) -> Iterator[_Finding]:
    names = settings.band_names
    callers: list[tuple[Path_, AnonymousSettings | TenantSettings]] = [
        (("tenants", index), tenant) for index, tenant in enumerate(settings.tenants)
    ]
    if settings.anonymous:
        callers.append((("anonymous",), settings.anonymous))
    for path, caller in callers:
        if names.index(caller.band) < names.index(caller.max_band):
            expected = f"expected {caller.band} or higher, because band is {caller.band}"
            yield (*path, "max_band"), expected, caller.max_band, None


def _models(settings: Settings) -> Iterator[_Finding]:
    named: list[tuple[Path_, str]] = []
    for index, model in enumerate(settings.models):
        named.append((("models", index, "name"), model.name))
        named += [(("models", index, "aliases", i), alias) for i, alias in enumerate(model.aliases)]
    yield from _twice(named)
    for index, model in enumerate(settings.models):
        if model.name == "default" and any(other.name == WILDCARD for other in settings.models):
            yield ("models", index, "name"), "expected another name, `default` is the pool of the model *", "", None
        for i, alias in enumerate(model.aliases):
            if alias == WILDCARD:
                yield ("models", index, "aliases", i), "expected a name, `*` stands only as a model's name", "", None


def _backends(settings: Settings) -> Iterator[_Finding]:
    return _twice(
        (("models", i, "backends", j, "name"), backend.name)
        for i, model in enumerate(settings.models)
        for j, backend in enumerate(model.backends)
    )


def _tenants(settings: Settings) -> Iterator[_Finding]:
    yield from _twice((("tenants", i, "name"), tenant.name) for i, tenant in enumerate(settings.tenants))
    keys = [
        (("tenants", i, "keys", j), key)
        for i, tenant in enumerate(settings.tenants)
        for j, key in enumerate(tenant.keys)
    ]
    yield from _twice(keys)
    for index, tenant in enumerate(settings.tenants):
        if tenant.name == ANONYMOUS:
            yield ("tenants", index, "name"), "expected another name, callers without a key have this one", "", None


def _rules(settings: Settings) -> Iterator[_Finding]:
    tenants = [tenant.name for tenant in settings.tenants] + [ANONYMOUS]
    models = [name for model in settings.models for name in (model.name, *model.aliases)]
    for index, rule in enumerate(settings.rules):
        path: Path_ = ("rules", index, "when")
        conditions = rule.when.tenant, rule.when.header, rule.when.path, rule.when.model, rule.when.metadata
        if not any(conditions):
            yield path, "expected at least one condition: tenant, header, path, model or metadata", "", None
        yield from _known((*path, "tenant"), rule.when.tenant or (), tenants)
        if WILDCARD not in models:
            yield from _known((*path, "model"), rule.when.model or (), models)


def _addresses(settings: Settings) -> Iterator[_Finding]:
    control = settings.control.listen
    if not control.is_loopback:
        expected = "expected a loopback address: the control port has no access tokens in this version"
        yield ("control", "listen"), expected, str(control), None
    if control.port and control == settings.gateway.listen:
        yield ("control", "listen"), "expected another address than gateway.listen", str(control), None


def _known(path: Path_, values: Iterable[str], known: list[str]) -> Iterator[_Finding]:
    for value in values:
        if value not in known and not value.endswith("*"):
            yield path, f"expected one of {', '.join(known)}", repr(value), nearest(value, known)


def _twice(named: Iterable[tuple[Path_, str]]) -> Iterator[_Finding]:
    first: dict[str, Path_] = {}
    for path, name in named:
        if name in first:
            yield path, f"expected a name of its own, {dotted(first[name])} has it", repr(name), None
        else:
            first[name] = path
