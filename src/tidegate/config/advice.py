"""Settings that are allowed and probably not meant, beyond what ``core.bounds`` finds in the policy itself."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.config.fields import Engine, ShedAnswer
from tidegate.config.policy import MessageSettings
from tidegate.config.schema import Settings
from tidegate.config.upstreams import BackendSettings
from tidegate.core.policy import AUTO, Saturated

_SHOWS_CACHE = {Engine.VLLM, Engine.SGLANG, Engine.TIDEGATE}


def advice(settings: Settings) -> list[tuple[str, str]]:
    """Return warnings as (dotted path, sentence)."""
    return [*_callers(settings), *_unused(settings), *_sheds(settings), *_backends(settings)]


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


def _sheds(settings: Settings) -> Iterator[tuple[str, str]]:
    rows = [backend for model in settings.models for backend in model.backends]
    for name, band in settings.policy.bands.items():
        if band.when_saturated is not Saturated.SHED or band.ceiling < 1:
            continue
        path = f"policy.bands.{name}.when_saturated"
        if not band.kv_watermark:
            yield path, "never sheds: ceiling is 1 and there is no kv_watermark"
        elif not any(_cache_is_known(row) for row in rows):
            yield path, "never sheds: ceiling is 1, and no backend shows its KV cache or has kv_tokens"


def _cache_is_known(row: BackendSettings) -> bool:
    return row.kv_tokens is not None or (bool(row.metrics_url) and row.engine in _SHOWS_CACHE)


def _backends(settings: Settings) -> Iterator[tuple[str, str]]:
    for index, model in enumerate(settings.models):
        for number, row in enumerate(model.backends):
            path = f"models[{index}].backends[{number}]"
            if row.seats == AUTO and not row.metrics_url:
                yield f"{path}.seats", "auto sees no metrics here, and finds its number by 429s and slow answers alone"
            if not row.tls.verify:
                yield f"{path}.tls.verify", "anybody between here and the backend can read and change what passes"
