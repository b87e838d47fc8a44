"""What each kind of engine shows of itself, as one table of metric names, and how a page becomes a ``Reading``.

Sources of the names:

* vLLM: read off a running vLLM 0.32. ``vllm:kv_cache_usage_perc`` counts blocks that are cached but not referenced as
  free, 0 to 1; before 0.10 it was called ``vllm:gpu_cache_usage_perc``. One series for each data-parallel engine.
* SGLang: ``SchedulerMetricsCollector`` in its repository, ``python/sglang/srt/observability/metrics_collector.py``, and
  https://docs.sglang.io/docs/references/production_metrics (shown only with ``--enable-metrics``).
  ``sglang:token_usage`` leaves evictable tokens out, so it means what vLLM's gauge means. A preemption is called a
  retraction; ``sglang:num_retracted_reqs`` is a gauge of the last batch and not the counter. With priority
  scheduling the total stands under ``priority=""`` beside a series for each priority; with metrics for all schedulers
  each tensor-parallel rank repeats the figures of rank 0.
* llama.cpp: read off a running server with ``--metrics`` (501 without it). No KV gauge. ``/slots`` shows its slots.
* The simulated engine shows vLLM's names. ``openai`` stands for upstreams that show nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from tidegate.backends.metrics_text import Sample, find_samples
from tidegate.core.signals import Reading

Names = tuple[bytes, ...]
"""Names of one metric, the newest first; the first one that the page has counts."""


@dataclass(slots=True, frozen=True)
class MetricNames:
    """Where one kind of engine shows what; empty where it does not.

    Attributes:
        running, waiting: requests in the batch and in the engine's queue (gauges, added over ranks).
        kv_used: used part of the KV cache (gauge, 0 to 1); over ranks the fullest counts, it is the one that preempts.
        preemptions, generated: counters, added over ranks.
        kv_tokens: gauge of the cache's size in tokens, added over ranks.
        kv_info: info metric whose labels ``num_gpu_blocks`` and ``block_size`` give that size.
        slots: the engine has a page ``/slots``.
    """

    running: Names = ()
    waiting: Names = ()
    kv_used: Names = ()
    preemptions: Names = ()
    generated: Names = ()
    kv_tokens: Names = ()
    kv_info: Names = ()
    slots: bool = False


_VLLM = MetricNames(
    running=(b"vllm:num_requests_running",),
    waiting=(b"vllm:num_requests_waiting",),
    kv_used=(b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc"),
    preemptions=(b"vllm:num_preemptions_total",),
    generated=(b"vllm:generation_tokens_total",),
    kv_info=(b"vllm:cache_config_info",),
)

SIGNALS: dict[str, MetricNames | None] = {
    "vllm": _VLLM,
    "sglang": MetricNames(
        running=(b"sglang:num_running_reqs",),
        waiting=(b"sglang:num_queue_reqs",),
        kv_used=(b"sglang:token_usage",),
        preemptions=(b"sglang:num_retracted_requests_total",),
        generated=(b"sglang:generation_tokens_total",),
        kv_tokens=(b"sglang:max_total_num_tokens",),
    ),
    "llamacpp": MetricNames(
        running=(b"llamacpp:requests_processing",),
        waiting=(b"llamacpp:requests_deferred",),
        generated=(b"llamacpp:tokens_predicted_total",),
        slots=True,
    ),
    "openai": None,
    "tidegate": _VLLM,
}
"""Metric names by the engine's name in the configuration file; ``None`` for one without signals."""

_REPEATS = ("tp_rank", "pp_rank")
"""Labels of ranks that work on the same requests: only rank 0 counts."""


def read_page(names: MetricNames, page: bytes, *, backend: str, at: float) -> Reading | None:
    """Read a metrics page.

    Args:
        names: of the engine's kind.
        page: as it came.
        backend: name for the reading.
        at: ``now`` of the moment of asking, seconds.

    Returns:
        The reading; ``None`` when the page shows nothing of the engine (a page of something else).
    """
    used = _samples(names.kv_used, page)
    reading = Reading(
        backend,
        at,
        kv_free=min(max(1.0 - max(sample.value for sample in used), 0.0), 1.0) if used else None,
        running=_total(names.running, page),
        waiting=_total(names.waiting, page),
        preemptions=_total(names.preemptions, page),
        kv_tokens=_size(names, page),
        generated=_total(names.generated, page),
    )
    return None if reading.running is None and reading.kv_free is None else reading


def _samples(names: Names, page: bytes) -> list[Sample]:
    for name in names:
        found = [sample for sample in find_samples(page, name) if _counts(sample)]
        if found:
            return found
    return []


def _counts(sample: Sample) -> bool:
    labels = sample.labels
    return not labels.get("priority") and all(labels.get(rank, "0") in ("0", "") for rank in _REPEATS)


def _total(names: Names, page: bytes) -> int | None:
    found = _samples(names, page)
    return round(sum(sample.value for sample in found)) if found else None


def _size(names: MetricNames, page: bytes) -> int | None:
    size = _total(names.kv_tokens, page)
    if size is None:
        size = sum(_blocks(sample.labels) for sample in _samples(names.kv_info, page))
    return size if size > 0 else None


def _blocks(labels: dict[str, str]) -> int:
    """Tokens of one rank's blocks; 0 where it shows ``None`` because it has not counted them yet."""
    count, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
    return int(count) * int(size) if count.isascii() and count.isdigit() and size.isascii() and size.isdigit() else 0


class Slot(msgspec.Struct):
    """One slot of llama.cpp's page ``/slots``."""

    is_processing: bool = False
    n_ctx: int = 0


_slots_decoder = msgspec.json.Decoder(list[Slot])


def read_slots(page: bytes) -> list[Slot] | None:
    """Read llama.cpp's ``/slots``; ``None`` when it is no such page."""
    try:
        slots = _slots_decoder.decode(page)
    except msgspec.DecodeError:
        return None
    return slots or None
