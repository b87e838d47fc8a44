"""Settings that are allowed and probably not meant: what ``tidegate check`` warns of."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from tidegate.config.fields import ShedAnswer
from tidegate.config.policy import MessageSettings
from tidegate.config.schema import Settings

USUAL_BANDS = 3


def advice(settings: Settings) -> list[tuple[str, str]]:
    """Return warnings as (dotted path, sentence)."""
    return list(
        chain(_callers(settings), _bands(settings), _starving(settings), _ceilings(settings), _unused(settings))
    )


def _callers(settings: Settings) -> Iterator[tuple[str, str]]:
    if not settings.tenants and settings.anonymous is None:
        yield "tenants", "nobody can call: there are no tenants, and callers without a key are not allowed"


def _bands(settings: Settings) -> Iterator[tuple[str, str]]:
    if (count := len(settings.band_names)) > USUAL_BANDS:
        yield "policy.bands", f"{count} bands: more than {USUAL_BANDS} are hard to reason about, and each floor shrinks"


def _starving(settings: Settings) -> Iterator[tuple[str, str]]:
    for name in settings.band_names[1:]:
        if not settings.policy.bands[name].floor:
            yield f"policy.bands.{name}.floor", "0: the band may wait for ever while a higher band has work"


def _ceilings(settings: Settings) -> Iterator[tuple[str, str]]:
    for name, band in settings.policy.bands.items():
        for model in settings.models:
            seats = sum(backend.seats for backend in model.backends)
            idle = seats - (int(band.ceiling * seats) + 1)
            if idle > 0:
                part = f"{float(band.ceiling):g}"
                text = f"{part}: {idle} of {seats} seats of {model.pool} stay idle while only {name} waits"
                yield f"policy.bands.{name}.ceiling", text


def _unused(settings: Settings) -> Iterator[tuple[str, str]]:
    for name, band in settings.policy.bands.items():
        path = f"policy.bands.{name}"
        if band.promote_after is not None and band.promote_after >= band.ttl:
            yield f"{path}.promote_after", "no ticket gets so old: it is not below ttl"
        if band.message != MessageSettings() and band.shed_answer is ShedAnswer.ERROR:
            yield f"{path}.message", "is never sent: shed_answer is error"
    if settings.policy.bands[settings.band_names[0]].promote_after is not None:
        yield f"policy.bands.{settings.band_names[0]}.promote_after", "has no effect: no band is higher"
