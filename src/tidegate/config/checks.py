"""What no single value can know: names that must exist, be unique, or agree with each other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain

from tidegate.config.errors import REQUEST, ConfigError, Problem
from tidegate.config.fields import Engine, ShedModel
from tidegate.config.schema import (
    ANONYMOUS,
    NORMAL,
    WILDCARD,
    AnonymousSettings,
    Settings,
    TenantSettings,
)
from tidegate.config.shape import locate
from tidegate.config.tree import Map, Path_, Scalar, describe, dotted
from tidegate.config.upstreams import BackendSettings
from tidegate.config.values import ExpectedError, nearest, parse_name
from tidegate.core import PolicyError
from tidegate.core.policy import AUTO

_BANDS = [f"p{index}" for index in range(8)]
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


_sound: tuple[object, ...] = (None,)
"""Callers that were found sound last: other policies leave them as they are, and there may be ten thousand."""


def cross_check(settings: Settings, tree: Map) -> list[Problem]:
    """Return every contradiction between settings, each with its place in ``tree``."""
    global _sound
    callers = (settings.tenants, settings.anonymous, settings.band_names)
    known = _sound[0] is callers[0] and _sound[1:] == callers[1:]
    of_callers = [] if known else [*_clamps(settings), *_tenants(settings)]
    if not of_callers:
        _sound = callers
    found = chain(
        _bands(settings),
        of_callers,
        _models(settings),
        _backends(settings),
        _rules(settings),
        _shed_models(settings),
        _modes(settings),
        _control(settings),
    )
    return [_placed(tree, finding) for finding in found]


def policy_problems(settings: Settings, tree: Map) -> list[Problem]:
    """Return what keeps the policy, or the policy of a mode, from being obeyed, each with its place in ``tree``."""
    found: list[Problem] = []
    for mode in dict.fromkeys((NORMAL, *settings.modes)):
        before: Path_ = () if mode == NORMAL else ("modes", mode)
        try:
            bands = [band.name for band in settings.core_policy(mode).bands]
        except PolicyError as error:
            found.append(_placed(tree, ((*before, *error.field.split(".")), error.message, "", None)))
            if mode == NORMAL:  # its modes would say the same again
                break
        except ConfigError as error:
            found += [
                _placed(tree, ((*before, *problem.path.split(".")), problem.expected, problem.came, problem.nearest))
                for problem in error.errors
            ]
        else:
            if bands != list(settings.band_names):
                path: Path_ = (*before, "policy", "bands")
                expected = f"expected only bands that policy has: {', '.join(settings.band_names)}"
                found.append(_placed(tree, (path, expected, ", ".join(bands), None)))
    return found


def judged(settings: Settings) -> Settings:
    """Return settings that no file holds, once they have been found free of contradictions.

    Raises:
        ConfigError: with every problem.
    """
    tree = Map(REQUEST)
    problems = cross_check(settings, tree) or policy_problems(settings, tree)
    if problems:
        raise ConfigError(problems)
    return settings


_Finding = tuple[Path_, str, str, str | None]
"""Path, what was expected, what came, the nearest name."""


def _placed(tree: Map, finding: _Finding) -> Problem:
    path, expected, came, hint = finding
    node, mark = locate(tree, path)
    if came and isinstance(node, Scalar):
        came = describe(node)  # as written: what the environment filled in is not shown
    return Problem(dotted(path), expected, came, hint, mark)


def _bands(settings: Settings) -> Iterator[_Finding]:
    for name in settings.band_names:
        if name not in _BANDS:
            path: Path_ = ("policy", "bands", name)
            yield path, "expected a band from p0 (highest) to p7", repr(name), nearest(name, _BANDS)
    names = [name for name in settings.band_names if name in _BANDS]
    for index, name in enumerate(names):
        path = ("policy", "bands", name)
        if name != _BANDS[index]:
            yield path, f"expected the bands without a gap, {_BANDS[index]} is missing", "", None
        band = settings.policy.bands[name]
        if index and band.floor is None:
            expected = "expected a floor (a part like 0.05), or `floor: 0` to say that the band may wait for ever"
            yield path, expected, "", None
        if index == len(names) - 1 and band.reserve:
            yield (*path, "reserve"), "expected 0, no band is below the lowest", str(band.reserve), None
        yield from _reserve(settings, name)


def _reserve(settings: Settings, name: str) -> Iterator[_Finding]:
    reserve = settings.policy.bands[name].reserve
    path: Path_ = ("policy", "bands", name, "reserve")
    if reserve == AUTO:
        return
    for index, model in enumerate(settings.models):
        seats = [backend.seats for backend in model.backends if backend.seats != AUTO]
        if len(seats) == len(model.backends) and reserve >= sum(seats):
            expected = f"expected at most {sum(seats) - 1}, one less than the seats of models[{index}]"
            yield path, expected, str(reserve), None


def _clamps(settings: Settings) -> Iterator[_Finding]:
    rank = {name: index for index, name in enumerate(settings.band_names)}

    def is_wrong(caller: AnonymousSettings | TenantSettings) -> bool:
        return rank[caller.band] < rank[caller.max_band]

    callers: list[tuple[Path_, AnonymousSettings | TenantSettings]] = [
        (("tenants", index), tenant) for index, tenant in enumerate(settings.tenants) if is_wrong(tenant)
    ]
    if settings.anonymous and is_wrong(settings.anonymous):
        callers.append((("anonymous",), settings.anonymous))
    for path, caller in callers:
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
    rows = [
        (("models", i, "backends", j), backend)
        for i, model in enumerate(settings.models)
        for j, backend in enumerate(model.backends)
    ]
    yield from _twice(((*path, "name"), backend.name) for path, backend in rows)
    for path, backend in rows:
        yield from _backend(path, backend)


def _backend(path: Path_, backend: BackendSettings) -> Iterator[_Finding]:
    if backend.metrics_url and backend.stale_after <= backend.poll_every:
        expected = f"expected more than poll_every ({backend.poll_every:g} s)"
        yield (*path, "stale_after"), expected, f"{backend.stale_after:g} s", None
    if backend.metrics_url and backend.engine is Engine.OPENAI:
        expected = "expected no metrics_url: engine openai shows no metrics; say which engine it is"
        yield (*path, "metrics_url"), expected, "a URL", None
    if (backend.tls.ca or not backend.tls.verify) and not backend.url.startswith("https:"):
        yield (*path, "tls"), "expected an https url beside it", "", None
    if backend.tls.ca and not backend.tls.verify:
        yield (*path, "tls", "ca"), "expected no ca, verify is false", "", None


def _tenants(settings: Settings) -> Iterator[_Finding]:
    names = {tenant.name for tenant in settings.tenants}
    if len(names) < len(settings.tenants):
        yield from _twice((("tenants", i, "name"), tenant.name) for i, tenant in enumerate(settings.tenants))
    keys = [key for tenant in settings.tenants for key in tenant.keys]
    if len(set(keys)) < len(keys):
        yield from _twice(
            (("tenants", i, "keys", j), key)
            for i, tenant in enumerate(settings.tenants)
            for j, key in enumerate(tenant.keys)
        )
    if ANONYMOUS in names:
        index = next(i for i, tenant in enumerate(settings.tenants) if tenant.name == ANONYMOUS)
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
        for value in rule.when.path or ():
            if not value.startswith(("/", "*")):  # no request has it, and the rule would say nothing for ever
                yield (*path, "path"), "expected paths that begin with /, like /v1/completions", repr(value), None
        for name in rule.when.header or ():
            if not _HEADER.fullmatch(name):
                yield (*path, "header"), "expected the name of a header, like x-scene", repr(name), None


def _shed_models(settings: Settings) -> Iterator[_Finding]:
    models = [name for model in settings.models for name in (model.name, *model.aliases)]
    for name, band in settings.policy.bands.items():
        answer = band.shed_answer
        if isinstance(answer, ShedModel) and answer.model not in models and WILDCARD not in models:
            path: Path_ = ("policy", "bands", name, "shed_answer", "model")
            yield path, f"expected one of {', '.join(models)}", repr(answer.model), nearest(answer.model, models)


def _modes(settings: Settings) -> Iterator[_Finding]:
    for name in settings.modes:
        path: Path_ = ("modes", name)
        if name == NORMAL:
            yield path, "expected another name, `normal` is the policy itself", "", None
        try:
            parse_name(name)
        except ExpectedError as error:
            yield path, error.expected, repr(name[:60]), None


def _control(settings: Settings) -> Iterator[_Finding]:
    control, operators = settings.control, settings.control.operators
    yield from _twice((("control", "operators", i, "name"), row.name) for i, row in enumerate(operators))
    yield from _twice((("control", "operators", i, "token"), row.token) for i, row in enumerate(operators))
    keys = {key for tenant in settings.tenants for key in tenant.keys}
    for index, row in enumerate(operators):
        if row.token in keys:
            expected = "expected a token of its own: a tenant has this key, and its callers would be operators"
            yield ("control", "operators", index, "token"), expected, "", None
    if not control.listen.is_loopback and not operators:
        expected = "expected a loopback address, or operators: without them nobody is asked for a token"
        yield ("control", "listen"), expected, str(control.listen), None
    if control.listen.port and control.listen == settings.gateway.listen:
        yield ("control", "listen"), "expected another address than gateway.listen", str(control.listen), None


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
