"""The shape of a scenario file. As in the settings, the attribute is the YAML key and its value is converted.

``preset``, ``policy`` and ``tenants`` are those of the settings file, word for word, and read by its own loader: what
has been proven here can be pasted there.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator

from tidegate.config import ExpectedError, parse_positive_duration
from tidegate.config.fields import (
    BandName,
    Kind,
    Name,
    Number,
    PositiveNumber,
    PositiveSeconds,
    PositiveWhole,
    SeatCount,
    Seconds,
    Section,
    Switch,
    Text,
    Texts,
    Whole,
)
from tidegate.config.values import parse_choice, parse_positive_whole, parse_switch
from tidegate.simulation import PROFILES, WaitingOrder
from tidegate.simulation.scenario import EXACT, NEVER, Arrivals, Length, Split
from tidegate.simulation.scenario import Kind as Law

_LENGTH = "expected a number of tokens, {low, high}, or {median, p99} (and, if you like, low and high)"


class Lengths(StrEnum):
    """What the scheduler knows of answers that are not written yet."""

    LEARNED = "learned"
    KNOWN = "known"


def _drain(value: object) -> float:
    if isinstance(value, str) and value.strip() == "all":
        return NEVER
    try:
        return parse_positive_duration(value)
    except ExpectedError as error:
        raise ExpectedError(f"{error.expected}, or `all`") from None


def _length(value: object) -> Length:
    if not isinstance(value, dict):
        tokens = _tokens(value)
        return Length(tokens, tokens)
    if unknown := sorted(set(value) - {"low", "high", "median", "p99"}):
        raise ExpectedError(f"{_LENGTH}; {unknown[0]!r} is none of these")
    found = {key: _tokens(item) for key, item in value.items()}
    median, p99 = found.get("median"), found.get("p99")
    if ("median" in found) != ("p99" in found) or (median is None and set(found) != {"low", "high"}):
        raise ExpectedError(_LENGTH)
    law = Length(found.get("low", 1), found.get("high", 1_000_000), median, p99)
    if law.low > law.high or (median is not None and p99 is not None and median > p99):
        raise ExpectedError("expected low ≤ high and median ≤ p99")
    return law


def _tokens(value: object) -> int:
    try:
        return parse_positive_whole(value)
    except ExpectedError:
        raise ExpectedError(_LENGTH) from None


def _max_tokens(value: object) -> int | Literal["exact"]:
    if value == EXACT:
        return EXACT
    try:
        return parse_positive_whole(value)
    except ExpectedError as error:
        raise ExpectedError(f"{error.expected}, or `exact`") from None


def _bounds(value: object) -> tuple[int, int]:
    if not isinstance(value, dict) or not value or not set(value) <= {"least", "most"}:
        raise ExpectedError("expected {least: TOKENS}, {most: TOKENS}, or both")
    found = {key: parse_positive_whole(item) for key, item in value.items()}
    return found.get("least", 0), found.get("most", 1_000_000_000)


def _scrape(value: object) -> bool | dict[str, Any]:
    if isinstance(value, dict):
        if not set(value) <= {"every", "late", "spread"}:
            raise ExpectedError("expected `off`, or a mapping of every, late and spread")
        return value
    if parse_switch(value):
        return {}
    return False


def _choice(names: list[str]) -> PlainValidator:
    return PlainValidator(lambda value: parse_choice(value, names))


Drain = Annotated[float, PlainValidator(_drain), Kind("duration, `all`")]
LengthLaw = Annotated[Length, PlainValidator(_length), Kind("tokens, `{low, high}`, `{median, p99}`")]
MaxTokens = Annotated[int | Literal["exact"], PlainValidator(_max_tokens), Kind("whole number ≥ 1, `exact`")]
Bounds = Annotated[tuple[int, int], PlainValidator(_bounds), Kind("`{least, most}`")]
ScrapeSpec = Annotated[bool | dict[str, Any], PlainValidator(_scrape), Kind("`off`, `{every, late, spread}`")]
ProfileName = Annotated[str, _choice(list(PROFILES)), Kind("profile")]
OrderName = Annotated[str, _choice([str(item) for item in WaitingOrder]), Kind("`fcfs`, `priority`")]
LawName = Annotated[str, _choice([str(item) for item in Law]), Kind("law of arrivals")]
SplitName = Annotated[Split, _choice([str(item) for item in Split]), Kind("`bands`, `turn`")]
LengthsName = Annotated[str, _choice([str(item) for item in Lengths]), Kind("`learned`, `known`")]


class EngineSection(Section):
    """Engines that are alike."""

    profile: ProfileName = Field(default="h100-8b", description="Cost of a step.")
    replicas: PositiveWhole = Field(default=1, description="How many of them.")
    seats: SeatCount = Field(default=64, description="Seats of each, as of a backend.")
    model: Name = Field(default="m", description="Model that they serve; a pool of its own.")
    kv_tokens: PositiveWhole | None = Field(default=None, description="KV cache, tokens. Absent: the profile's.")
    max_sequences: PositiveWhole | None = Field(default=None, description="Most running. Absent: the profile's.")
    token_budget: PositiveWhole = Field(default=2048, description="Most tokens computed in a step.")
    order: OrderName = Field(default="fcfs", description="Order of the engine's own waiting list.")
    noise: Number = Field(default=0.08, description="Standard deviation of a step's time, as a part.")
    http: Seconds = Field(default=0.005, description="From the gateway to the engine's waiting list.")


class ArrivalsSection(Section):
    """When the requests of a source come."""

    law: LawName = Field(description="`trace`, `fixed`, `poisson`, `gamma`, `batch`, `endless`.")
    rate: PositiveNumber | None = Field(default=None, description="Requests a second: `fixed`, `poisson`, `gamma`.")
    cv: PositiveNumber | None = Field(default=None, description="Coefficient of variation of the gaps: `gamma`.")
    rows: PositiveWhole | None = Field(default=None, description="Requests at once: `batch`.")
    every: PositiveSeconds | None = Field(default=None, description="Between two batches. Absent: one batch.")
    speed: PositiveNumber | None = Field(default=None, description="Times as fast as the trace: `trace`.")


class RuleWhen(Section):
    """Conditions; all that are present must hold."""

    tenant: Texts | None = Field(default=None, description="Tenants of the trace; `name*` is a prefix.")
    prompt_tokens: Bounds | None = Field(default=None, description="Length of the prompt.")
    output_tokens: Bounds | None = Field(default=None, description="Length of the answer.")


class RuleSection(Section):
    """The first rule that matches gives the band."""

    when: RuleWhen = Field(description="At least one condition.")
    band: BandName = Field(description="Band of the requests that match.")


class SourceSection(Section):
    """One part of the load."""

    name: Name = Field(description="Unique; also its tenant where neither `tenant` nor the trace has one.")
    arrivals: ArrivalsSection = Field(description="When its requests come.")
    trace: Text | None = Field(default=None, description="File of lengths, tenants and times.")
    prompt_tokens: LengthLaw | None = Field(default=None, description="Prompt, without a trace.")
    output_tokens: LengthLaw | None = Field(default=None, description="Answer, without a trace.")
    band: BandName | None = Field(default=None, description="Band of what no rule and no column `band` places.")
    rules: tuple[RuleSection, ...] = Field(default=(), description="Bands by tenant or length.")
    tenant: Name | None = Field(default=None, description="Who pays. Absent: the trace's tenants.")
    model: Name = Field(default="m", description="Model that it asks for.")
    start: Seconds = Field(default=0.0, description="Its first request comes not before.")
    stop: PositiveSeconds | None = Field(default=None, description="Its last request comes before. Absent: the end.")
    shift: Seconds = Field(default=0.0, description="Where in the trace it begins.")
    repeat: Switch = Field(default=False, description="Begin the trace again after its last row.")
    limit: PositiveWhole | None = Field(default=None, description="Most requests.")
    longest: PositiveWhole | None = Field(
        default=None, description="Leave rows of the trace out that have more tokens, prompt and answer together."
    )
    job: Switch = Field(default=False, description="Rows of a batch job: fed in little by little, and never shed.")
    window: PositiveWhole | None = Field(default=None, description="Rows of a job that wait in the gateway; 128.")
    patience: PositiveSeconds | None = Field(default=None, description="Clients leave then. Absent: never.")
    max_tokens: MaxTokens | None = Field(
        default=None, description="Longest answer that clients allow: a number, or exactly what the answer has."
    )


class SloSection(Section):
    """Targets of a band; what is absent is no target."""

    ttft: PositiveSeconds | None = Field(default=None, description="Arrival to first token.")
    tpot: PositiveSeconds | None = Field(default=None, description="Per output token after the first.")
    end: PositiveSeconds | None = Field(default=None, description="Complete by then, and")
    per_token: Seconds = Field(default=0.0, description="as much later for each output token.")
    value: Number | None = Field(default=None, description="Of a token, beside other bands. Absent: its `share`.")


class GatewaysSection(Section):
    """Several gateways that share the pools."""

    count: PositiveWhole = Field(description="How many.")
    latency: Seconds = Field(default=0.0005, description="Time of a message between a gateway and the store.")
    split: SplitName = Field(default=Split.BANDS, description="Which gateway a request comes to.")


class ScenarioSection(Section):
    """The whole file, without what is read as settings."""

    name: Name | None = Field(default=None, description="For titles. Absent: the name of the file.")
    description: Text | None = Field(default=None, description="One sentence or two for the reader of the report.")
    duration: PositiveSeconds = Field(description="Requests come until then.")
    drain: Drain = Field(default=0.0, description="How long it goes on for what is open; `all`: to the end.")
    seed: Whole = Field(default=1, description="Of all chance.")
    lengths: LengthsName = Field(default="learned", description="What the scheduler knows of lengths.")
    scrape: ScrapeSpec = Field(default={}, description="How the engines' metrics pages are read.")
    engines: tuple[EngineSection, ...] = Field(description="At least one.", min_length=1)
    sources: tuple[SourceSection, ...] = Field(description="At least one.", min_length=1)
    slos: dict[str, SloSection] = Field(default={}, description="Targets by band, in place of the policy's.")
    gateways: GatewaysSection | None = Field(default=None, description="Several that share the pools. Absent: one.")
    claims: tuple[Text, ...] = Field(default=(), description="What has to hold.")
    baselines: tuple[Name, ...] = Field(default=("passthrough", "fifo", "strict", "bare_aging"), description="Beside.")


NEEDS = {
    Law.TRACE: ({"speed"}, set[str]()),
    Law.FIXED: ({"rate"}, {"rate"}),
    Law.POISSON: ({"rate"}, {"rate"}),
    Law.GAMMA: ({"rate", "cv"}, {"rate", "cv"}),
    Law.BATCH: ({"rows", "every"}, {"rows"}),
    Law.ENDLESS: (set[str](), set[str]()),
}
"""Per law: what it takes, and what it needs."""


def arrivals_of(section: ArrivalsSection) -> Arrivals:
    """Convert; absent values take the defaults of ``Arrivals``."""
    given = section.model_dump(include={"rate", "cv", "rows", "speed"}, exclude_none=True)
    return Arrivals(Law(section.law), every_s=section.every or NEVER, **given)
