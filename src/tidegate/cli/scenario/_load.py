"""From a scenario file to ``Scenario``, or to every problem at once, each with its line."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tidegate.cli.scenario._find import find_scenario, find_trace
from tidegate.cli.scenario._sections import (
    NEEDS,
    Lengths,
    RuleSection,
    ScenarioSection,
    SourceSection,
    arrivals_of,
)
from tidegate.config import ConfigError, ExpectedError, Problem, Settings, parse_duration, settings_of
from tidegate.config.shape import build, locate, unknown_bands
from tidegate.config.tree import Map, Path_, Scalar, Seq, dotted, parse_tree, read_text
from tidegate.config.values import nearest, parse_number
from tidegate.simulation import Scrape, WaitingOrder
from tidegate.simulation.claims import ClaimError
from tidegate.simulation.run import RUNS, claims_of
from tidegate.simulation.scenario import (
    NEVER,
    Edge,
    EngineSpec,
    Kind,
    Length,
    ReplicaSpec,
    Rule,
    Scenario,
    Slo,
    Source,
    Split,
)
from tidegate.simulation.sources import DEFAULT_WINDOW

_OF_SETTINGS = ("preset", "policy", "tenants")
_NO_KEY = "sha256:" + "0" * 56


def load_scenario(given: str, *, traces: Sequence[Path] = (), seed: int | None = None) -> Scenario:
    """Read a scenario file.

    Args:
        given: a path, or the name of a shipped scenario.
        traces: folders where traces are looked for, beside that of the file.
        seed: in place of the file's.

    Raises:
        ConfigError: with every problem found.
    """
    path = find_scenario(given)
    return parse_scenario(read_text(path), source=str(path), beside=path.parent, traces=traces, seed=seed)


def parse_scenario(
    text: str,
    *,
    source: str = "scenario.yaml",
    beside: Path = Path(),
    traces: Sequence[Path] = (),
    seed: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> Scenario:
    """Read the text of a scenario; arguments as in ``load_scenario``, ``source`` names it in errors.

    Raises:
        ConfigError: with every problem found.
    """
    problems: list[Problem] = []
    tree = parse_tree(text, source=source, environ=os.environ if environ is None else environ, problems=problems)
    own = Map(tree.mark)
    for key, node in tree.entries.items():
        if key not in _OF_SETTINGS:
            own.put(key, node, tree.keys[key])
    section = build(ScenarioSection, own, problems)
    settings = _settings(tree, section, problems)
    if settings is not None:
        problems += unknown_bands(ScenarioSection, own, list(settings.band_names))
    found: dict[str, Path] = {}
    if section is not None and settings is not None:
        problems += _checked(section, settings, own)
        problems += _find_traces(section, own, beside, traces, found)
    if section is None or settings is None or problems:
        raise ConfigError(problems)
    scenario = _scenario(section, settings, found, name=section.name or Path(source).stem, seed=seed)
    try:
        claims_of(scenario)
    except ClaimError:
        raise ConfigError(list(_claim_problems(scenario, own))) from None
    return scenario


def _settings(tree: Map, section: ScenarioSection | None, problems: list[Problem]) -> Settings | None:
    """Read what is settings, with the engines as its backends; problems are appended."""
    product = Map(tree.mark)
    for key in ("preset", "policy"):
        if key in tree.entries:
            product.put(key, tree.entries[key], tree.keys[key])
    if "tenants" in tree.entries:
        product.put("tenants", _with_keys(tree.entries["tenants"]), tree.keys["tenants"])
    product.put("models", _models(tree, section), tree.mark)
    try:
        return settings_of(product, [])
    except ConfigError as error:
        problems += error.errors
        return None


def _models(tree: Map, section: ScenarioSection | None) -> Seq:
    mark = tree.mark

    def mapping(**entries: object) -> Map:
        result = Map(mark)
        for key, value in entries.items():
            text = str(value)
            result.put(key, value if isinstance(value, Seq) else Scalar(text, text, mark), mark)
        return result

    backends: dict[str, list[tuple[str, object]]] = {"m": [("m", 1)]} if section is None else {}
    for spec in () if section is None else section.engines:
        rows = backends.setdefault(spec.model, [])
        rows += [(_backend(spec.model, len(rows) + number), spec.seats) for number in range(spec.replicas)]
    models: list[Map] = []
    for model, rows in backends.items():
        items = [
            mapping(name=name, url=f"http://{name}.invalid", engine="tidegate", seats=seats) for name, seats in rows
        ]
        models.append(mapping(name=model, backends=Seq(list(items), mark)))
    return Seq(list(models), mark)


def _backend(model: str, number: int) -> str:
    return f"{model}-{number + 1}"


def _with_keys(node: object) -> Seq | Map | Scalar:
    """Give tenants without keys one that nobody has: a simulation needs none."""
    if isinstance(node, Seq):
        for number, item in enumerate(node.items):
            if isinstance(item, Map) and "keys" not in item.entries:
                digest = f"{_NO_KEY}{number:08x}"
                item.put("keys", Seq([Scalar(digest, digest, item.mark)], item.mark), item.mark)
    assert isinstance(node, Seq | Map | Scalar)
    return node


def _checked(section: ScenarioSection, settings: Settings, tree: Map) -> Iterator[Problem]:
    def problem(path: Path_, expected: str, came: str = "", known: Sequence[str] = ()) -> Problem:
        hint = nearest(came.strip("'"), list(known)) if known else None
        return Problem(dotted(path), expected, came, hint, locate(tree, path)[1])

    names = Counter(source.name for source in section.sources)
    models = {engine.model for engine in section.engines}
    for index, source in enumerate(section.sources):
        path: Path_ = ("sources", index)
        if names[source.name] > 1 or source.name in (*settings.band_names, "all"):
            yield problem(
                (*path, "name"), "expected a name of its own, not that of a band or another source", repr(source.name)
            )
        if source.model not in models:
            yield problem(
                (*path, "model"),
                f"expected a model of `engines`, one of {', '.join(sorted(models))}",
                repr(source.model),
            )
        yield from (problem((*path, *rest), expected) for rest, expected in _source_problems(source))
    for band in section.slos:
        if band not in settings.band_names:
            yield problem(
                ("slos", band),
                f"expected a band, one of {', '.join(settings.band_names)}",
                repr(band),
                settings.band_names,
            )
    for index, name in enumerate(section.baselines):
        if name not in RUNS[1:]:
            yield problem(("baselines", index), f"expected one of {', '.join(RUNS[1:])}", repr(name), RUNS[1:])
    try:
        _scrape(section)
    except ExpectedError as error:
        yield problem(("scrape",), error.expected)
    for index, engine in enumerate(section.engines):
        if engine.max_sequences is not None and engine.max_sequences > engine.token_budget:
            yield problem(
                ("engines", index, "max_sequences"),
                f"expected at most the token_budget ({engine.token_budget})",
                str(engine.max_sequences),
            )
        if engine.kv_tokens is not None and engine.kv_tokens < 16:
            yield problem(("engines", index, "kv_tokens"), "expected at least 16", str(engine.kv_tokens))


def _source_problems(source: SourceSection) -> Iterator[tuple[Path_, str]]:
    law = Kind(source.arrivals.law)
    takes, needs = NEEDS[law]
    given = set(source.arrivals.model_dump(exclude={"law"}, exclude_none=True))
    for key in sorted(given - takes):
        yield (
            ("arrivals", key),
            f"expected no `{key}` with the law {law}, which takes {', '.join(sorted(takes)) or 'nothing'}",
        )
    for key in sorted(needs - given):
        yield ("arrivals",), f"expected `{key}`, which the law {law} needs"
    laws = [name for name in ("prompt_tokens", "output_tokens") if getattr(source, name) is not None]
    if source.trace is not None:
        for name in laws:
            yield (name,), "expected either a trace or a law of lengths, not both"
    elif law is Kind.TRACE:
        yield ("arrivals", "law"), "expected a `trace` beside the law trace"
    elif len(laws) < 2:
        yield (), "expected a `trace`, or `prompt_tokens` and `output_tokens`"
    elif source.band is None:
        yield (), "expected a `band`, or a `trace` with a column band"
    for key, given_, only in (("shift", source.shift, Kind.TRACE), ("repeat", source.repeat, Kind.TRACE)):
        if given_ and law is not only:
            yield (key,), f"expected `{key}` only with the law trace"
    if source.longest is not None and source.trace is None:
        yield ("longest",), "expected `longest` only with a trace"
    if source.window is not None and not (source.job or law is Kind.ENDLESS):
        yield ("window",), "expected `window` only with `job: true` or the law endless"
    for index, rule in enumerate(source.rules):
        if not rule.when.model_dump(exclude_none=True):
            yield ("rules", index, "when"), "expected at least one condition"


def _find_traces(
    section: ScenarioSection, tree: Map, beside: Path, folders: Sequence[Path], found: dict[str, Path]
) -> Iterator[Problem]:
    for index, source in enumerate(section.sources):
        if source.trace is None:
            continue
        path = find_trace(source.trace, beside, folders)
        if path is None:
            places = ", ".join(str(folder) for folder in (beside, *folders))
            expected = f"expected a file in {places} or among the shipped ones; name its folder with --traces"
            yield Problem(
                f"sources[{index}].trace",
                expected,
                repr(source.trace),
                mark=locate(tree, ("sources", index, "trace"))[1],
            )
        else:
            found[source.trace] = path


def _claim_problems(scenario: Scenario, tree: Map) -> Iterator[Problem]:
    for index, text in enumerate(scenario.claims):
        try:
            claims_of(replace(scenario, claims=(text,)))
        except ClaimError as error:
            yield Problem(f"claims[{index}]", str(error), mark=locate(tree, ("claims", index))[1])


def _scenario(
    section: ScenarioSection, settings: Settings, traces: Mapping[str, Path], *, name: str, seed: int | None
) -> Scenario:
    bands = settings.policy.bands
    slos = [section.slos.get(band) for band in bands]
    return Scenario(
        name,
        settings.core_policy(),
        tuple(_engines(section)),
        tuple(_source(source, settings, traces) for source in section.sources),
        section.duration,
        section.description or "",
        section.drain,
        section.seed if seed is None else seed,
        tuple(
            Slo(band.ttft_slo, band.tpot_slo, value=float(band.share))
            if slo is None
            else Slo(slo.ttft, slo.tpot, slo.end, slo.per_token, float(band.share) if slo.value is None else slo.value)
            for slo, band in zip(slos, bands.values(), strict=True)
        ),
        tuple(Edge(band.max_input_tokens, band.max_output_tokens) for band in bands.values()),
        section.claims,
        section.baselines,
        _scrape(section, seed=section.seed if seed is None else seed),
        section.lengths == Lengths.KNOWN,
        _gateways(section),
    )


def _gateways(section: ScenarioSection) -> ReplicaSpec | None:
    given = section.gateways
    return None if given is None else ReplicaSpec(given.count, given.latency, Split(given.split))


def _scrape(section: ScenarioSection, *, seed: int = 0) -> Scrape | None:
    if section.scrape is False or section.scrape is True:
        return None
    given = section.scrape
    every, late = parse_duration(given.get("every", "500ms")), parse_duration(given.get("late", "50ms"))
    spread = parse_number(given.get("spread", "0.2"))
    if every <= 0 or spread >= 1:
        raise ExpectedError("expected every above 0 and spread below 1")
    return Scrape(every, late, spread, seed)


def _engines(section: ScenarioSection) -> Iterator[EngineSpec]:
    counts: Counter[str] = Counter()
    for spec in section.engines:
        for _ in range(spec.replicas):
            backend = _backend(spec.model, counts[spec.model])
            counts[spec.model] += 1
            yield EngineSpec(
                backend,
                spec.profile,
                spec.kv_tokens,
                spec.max_sequences,
                spec.token_budget,
                WaitingOrder(spec.order),
                spec.noise,
                spec.http,
            )


def _source(source: SourceSection, settings: Settings, traces: Mapping[str, Path]) -> Source:
    fed = source.job or source.arrivals.law == Kind.ENDLESS
    return Source(
        source.name,
        arrivals_of(source.arrivals),
        traces[source.trace] if source.trace is not None else None,
        source.prompt_tokens or Length(),
        source.output_tokens or Length(),
        None if source.band is None else settings.band_index(source.band),
        tuple(_rule(rule, settings) for rule in source.rules),
        source.tenant or "",
        source.model,
        source.start,
        NEVER if source.stop is None else source.stop,
        source.shift,
        source.repeat,
        source.limit,
        source.longest,
        (source.window or DEFAULT_WINDOW) if fed else None,
        fed,
        NEVER if source.patience is None else source.patience,
        source.max_tokens,
    )


def _rule(rule: RuleSection, settings: Settings) -> Rule:
    band, when = settings.band_index(rule.band), rule.when
    every = (0, 1_000_000_000)
    return Rule(band, when.tenant or (), when.prompt_tokens or every, when.output_tokens or every)
