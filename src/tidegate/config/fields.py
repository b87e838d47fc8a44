"""The types that settings have: each a parser, and the words by which the reference names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, PlainSerializer, PlainValidator, SecretStr

from tidegate.config import urls
from tidegate.config import values as v
from tidegate.core import BacklogOrder, Discipline, Full, Order, Unit
from tidegate.core.policy import AUTO, Auto, Saturated


@dataclass(frozen=True)
class Kind:
    """How the reference calls a type."""

    label: str


BAND = Kind("band")


class Section(BaseModel):
    """A mapping of the file: frozen, and closed against unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, hide_input_in_errors=True)


class Engine(StrEnum):
    """What serves the model behind a backend."""

    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"
    OPENAI = "openai"
    TIDEGATE = "tidegate"


class ShedAnswer(StrEnum):
    """What shed work is answered with."""

    ERROR = "error"
    FALLBACK = "fallback"


@dataclass(frozen=True, slots=True)
class ShedModel:
    """Shed work is sent to this model's pool instead (SPEC §6)."""

    model: str


class Role(StrEnum):
    """What an operator may do on the control port."""

    VIEWER = "viewer"
    OPERATOR = "operator"


class StoreLoss(StrEnum):
    """What becomes of a gateway's share of the seats while the cluster's store is away."""

    KEEP = "keep"
    SHRINK = "shrink"


def _one_of(enum: type[StrEnum]) -> tuple[Any, ...]:
    choices = [str(item) for item in enum]
    validator = PlainValidator(lambda value: enum(v.parse_choice(value, choices)))
    return validator, PlainSerializer(str, return_type=str), Kind(", ".join(f"`{choice}`" for choice in choices))


def _or_auto(parse: Callable[[object], int]) -> Callable[[object], int | Auto]:
    def read(value: object) -> int | Auto:
        if value == AUTO:
            return AUTO
        try:
            return parse(value)
        except v.ExpectedError as error:
            raise v.ExpectedError(f"{error.expected}, or `auto`", nearest=v.nearest(str(value), [AUTO])) from None

    return read


def _shed_answer(value: object) -> ShedAnswer | ShedModel:
    if isinstance(value, ShedModel):
        return value
    if isinstance(value, dict):
        if set(value) != {"model"}:
            raise v.ExpectedError("expected error, fallback, or {model: NAME}")
        return ShedModel(v.parse_text(value["model"]))
    try:
        return ShedAnswer(v.parse_choice(value, [str(item) for item in ShedAnswer]))
    except v.ExpectedError as error:
        raise v.ExpectedError(f"{error.expected}, or {{model: NAME}}", nearest=error.nearest) from None


def _overlay(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise v.ExpectedError("expected a mapping of settings of policy")
    return value


def _metrics_url(value: object) -> str:
    return "" if isinstance(value, str) and value.strip().lower() in ("", *v.OFF) else urls.parse_url(value)


def _texts(value: object) -> tuple[str, ...]:
    items = value if isinstance(value, list | tuple) else [value]
    if not items:
        raise v.ExpectedError("expected one value or a list of values")
    return tuple(v.parse_text(item) for item in items)


def _text_map(value: object) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict) or not value:
        raise v.ExpectedError("expected a mapping of names to one value or a list of values")
    return {v.parse_text(key): _texts(item) for key, item in value.items()}


def _headers(value: object) -> dict[str, tuple[str, ...]]:
    return {key.lower(): item for key, item in _text_map(value).items()}


def _secret(value: object) -> SecretStr:
    if isinstance(value, SecretStr):
        return value
    text = value if isinstance(value, str) else ""
    if not text or not text.isascii() or not text.isprintable():
        raise v.ExpectedError("expected a secret of printable ASCII, best from the environment: ${NAME}", secret=True)
    return SecretStr(text)


def _shed_text(value: ShedAnswer | ShedModel) -> Any:
    return {"model": value.model} if isinstance(value, ShedModel) else str(value)


def _listed(value: dict[str, tuple[str, ...]]) -> dict[str, list[str]]:
    return {key: list(items) for key, items in value.items()}


# Without a serializer of its own a plain validator is dumped by the shape of its annotation, which JSON mode refuses.
_AS_TEXT = PlainSerializer(str, return_type=str)
_AS_IS = PlainSerializer(lambda value: value, return_type=Any)
_AS_LIST = PlainSerializer(list, return_type=list[str])
_AS_LISTS = PlainSerializer(_listed, return_type=dict[str, list[str]])

Seconds = Annotated[float, PlainValidator(v.parse_duration), Kind("duration")]
PositiveSeconds = Annotated[float, PlainValidator(v.parse_positive_duration), Kind("duration above 0")]
LeaseSeconds = Annotated[float, PlainValidator(v.parse_lease), Kind("duration, at least 1s")]
Size = Annotated[int, PlainValidator(v.parse_size), Kind("size")]
Part = Annotated[Fraction, PlainValidator(v.parse_part), _AS_TEXT, Kind("part, 0 to 1")]
Whole = Annotated[int, PlainValidator(v.parse_whole), Kind("whole number ≥ 0")]
PositiveWhole = Annotated[int, PlainValidator(v.parse_positive_whole), Kind("whole number ≥ 1")]
Number = Annotated[float, PlainValidator(v.parse_number), Kind("number ≥ 0")]
PositiveNumber = Annotated[float, PlainValidator(v.parse_positive_number), Kind("number > 0")]
Switch = Annotated[bool, PlainValidator(v.parse_switch), Kind("`true`, `false`")]
Text = Annotated[str, PlainValidator(v.parse_text), Kind("text")]
Name = Annotated[str, PlainValidator(v.parse_name), Kind("name")]
BandName = Annotated[str, PlainValidator(v.parse_name), BAND]
Digest = Annotated[str, PlainValidator(v.parse_digest), Kind("`sha256:` digest")]
Secret = Annotated[SecretStr, PlainValidator(_secret), _AS_TEXT, Kind("secret")]
Listen = Annotated[v.Address, PlainValidator(v.parse_address), _AS_TEXT, Kind("HOST:PORT")]
RootUrl = Annotated[str, PlainValidator(urls.parse_root_url), Kind("root URL")]
Texts = Annotated[tuple[str, ...], PlainValidator(_texts), _AS_LIST, Kind("text or list of texts")]
TextMap = Annotated[dict[str, tuple[str, ...]], PlainValidator(_text_map), _AS_LISTS, Kind("mapping to texts")]
Headers = Annotated[dict[str, tuple[str, ...]], PlainValidator(_headers), _AS_LISTS, Kind("mapping to texts")]
EngineName = Annotated[Engine, *_one_of(Engine)]
ShedAnswerName = Annotated[
    ShedAnswer | ShedModel,
    PlainValidator(_shed_answer),
    PlainSerializer(_shed_text, return_type=Any),
    Kind("`error`, `fallback`, `{model: NAME}`"),
]
SeatCount = Annotated[
    int | Auto, PlainValidator(_or_auto(v.parse_positive_whole)), _AS_IS, Kind("whole number ≥ 1, `auto`")
]
ReserveCount = Annotated[int | Auto, PlainValidator(_or_auto(v.parse_whole)), _AS_IS, Kind("whole number ≥ 0, `auto`")]
SaturatedName = Annotated[Saturated, *_one_of(Saturated)]
RoleName = Annotated[Role, *_one_of(Role)]
MetricsUrl = Annotated[str, PlainValidator(_metrics_url), Kind("URL, `off`")]
StoreUrl = Annotated[str, PlainValidator(urls.parse_store_url), Kind("store URL")]
LedgerUrl = Annotated[str, PlainValidator(urls.parse_ledger_url), Kind("store URL")]
StoreLossName = Annotated[StoreLoss, *_one_of(StoreLoss)]
File = Annotated[str, PlainValidator(v.parse_text), Kind("file")]
Overlay = Annotated[dict[str, Any], PlainValidator(_overlay), _AS_IS, Kind("settings of `policy`")]
OrderName = Annotated[Order, *_one_of(Order)]
BacklogOrderName = Annotated[BacklogOrder, *_one_of(BacklogOrder)]
FullName = Annotated[Full, *_one_of(Full)]
DisciplineName = Annotated[Discipline, *_one_of(Discipline)]
UnitName = Annotated[Unit, *_one_of(Unit)]
