"""Settings that are allowed and probably not meant, beyond what ``core.bounds`` finds in the policy itself."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.config.fields import ShedAnswer
from tidegate.config.policy import MessageSettings
from tidegate.config.schema import Settings


def advice(settings: Settings) -> list[tuple[str, str]]:
    """Return warnings as (dotted path, sentence)."""
    return [*_callers(settings), *_unused(settings)]


def _callers(settings: Settings) -> Iterator[tuple[str, str]]:
    if not settings.tenants and settings.anonymous is None:
        yield "tenants", "nobody can call: there are no tenants, and callers without a key are not allowed"


def _unused(settings: Settings) -> Iterator[tuple[str, str]]:
    for name, band in settings.policy.bands.items():
        path = f"policy.bands.{name}"
        if band.promote_after is not None and band.promote_after >= band.ttl:
            yield f"{path}.promote_after", "no ticket gets so old: it is not below ttl"
        if band.message != MessageSettings() and band.shed_answer is ShedAnswer.ERROR:
            yield f"{path}.message", "is never sent: shed_answer is error"
    if settings.policy.bands[settings.band_names[0]].promote_after is not None:
        yield f"policy.bands.{settings.band_names[0]}.promote_after", "has no effect: no band is higher"
