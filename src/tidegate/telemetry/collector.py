"""Turn what the recorder counted, and what the scheduler says of itself, into families of metrics.

Runs on the event loop once per scrape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tidegate.telemetry import catalogue as names
from tidegate.telemetry.accounts import BandAccount, Histogram
from tidegate.telemetry.catalogue import Metric
from tidegate.telemetry.exposition import Family, bucket_series, series

if TYPE_CHECKING:
    from tidegate.core import Snapshot
    from tidegate.telemetry.recorder import Recorder, ReplicaSource, Source


class Collector:
    """Gives what one recorder counted."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def collect(self) -> Iterator[Family]:
        """Yield every metric of the catalogue that there is a source for."""
        recorder = self._recorder
        accounts = list(recorder.accounts.values())
        yield from _band_counters(accounts)
        yield from _band_histograms(accounts)
        yield _counter(names.INHERITANCES, {(): recorder.inheritances})
        bands = recorder.bands
        yield _counter(
            names.PREEMPTIONS, {(bands[victim], bands[by]): n for (victim, by), n in recorder.preemptions.items()}
        )
        yield _counter(names.RESUMES, {(*key,): n for key, n in recorder.resumes.items()})
        yield _histogram(names.SEAM, {(cause,): seam for cause, seam in recorder.seams.items()})
        yield _counter(names.WASTED_TOKENS, {(cause,): count for cause, count in recorder.waste.by_cause.items()})
        yield _gauge(names.MODE, {(recorder.mode,): 1.0})
        if recorder.source is not None:
            yield from _gauges(recorder, recorder.source)
        if recorder.replica is not None:
            yield from _replica(recorder.replica)


def _band_counters(accounts: list[BandAccount]) -> Iterator[Family]:
    yield _counter(names.REQUESTS, {(a.name, *key): count for a in accounts for key, count in a.requests.items()})
    yield _counter(names.REFUSALS, {(a.name, reason): count for a in accounts for reason, count in a.refusals.items()})
    yield _counter(names.DISPATCHES, {(a.name,): a.dispatched for a in accounts})
    yield _counter(names.OVERTAKES, {(a.name,): a.overtakes for a in accounts})
    yield _counter(names.PROMOTIONS, {(a.name,): a.promotions for a in accounts})
    yield _counter(names.CLAMPED, {(a.name,): a.clamped for a in accounts})
    yield _counter(names.DEMOTED, {(a.name,): a.demoted for a in accounts})
    tokens: dict[tuple[str, ...], int] = {}
    for account in accounts:
        tokens[account.name, "input"] = account.input_tokens
        tokens[account.name, "output"] = account.output_tokens
    yield _counter(names.TOKENS, tokens)


def _band_histograms(accounts: list[BandAccount]) -> Iterator[Family]:
    yield _histogram(names.QUEUE_WAIT, {(a.name,): a.queue_wait for a in accounts})
    yield _histogram(names.TTFT, {(a.name,): a.ttft for a in accounts})
    yield _histogram(names.REQUEST, {(a.name,): a.request for a in accounts})
    ratios: dict[tuple[str, ...], Histogram] = {}
    for account in accounts:
        ratios[account.name, "input"] = account.input_ratio
        ratios[account.name, "output"] = account.output_ratio
    yield _histogram(names.ESTIMATE_ERROR, ratios)


def _gauges(recorder: Recorder, source: Source) -> Iterator[Family]:
    now, snapshot = source.now(), source.snapshot()
    bands = recorder.bands
    depth = dict.fromkeys(bands, 0)
    oldest = dict.fromkeys(bands, 0.0)
    for row in snapshot.bands:
        depth[row.name] += row.depth
        oldest[row.name] = max(oldest[row.name], row.oldest_wait_s)
    yield _gauge(names.QUEUE_DEPTH, {(band,): count for band, count in depth.items()})
    yield _gauge(names.OLDEST_WAIT, {(band,): wait_s for band, wait_s in oldest.items()})
    peaks = {(band,): recorder.accounts[band].depth_max.read(now) for band in bands}
    yield _gauge(names.QUEUE_DEPTH_MAX, {key: max(peak, depth[key[0]]) for key, peak in peaks.items()})
    running = {band: recorder.accounts[band].running for band in bands}
    counts: dict[tuple[str, ...], float] = {
        (band, backend): float(count.value) for band, each in running.items() for backend, count in each.items()
    }
    yield _gauge(names.RUNNING, counts)
    yield _gauge(names.SEATS, {(backend.name,): float(backend.seats) for backend in snapshot.backends})
    yield _gauge(names.BACKEND_UP, {(backend.name,): float(backend.up) for backend in snapshot.backends})
    yield from _capacity(snapshot)
    yield _counter(names.WOULD, {(reason,): count for reason, count in snapshot.would})
    yield _gauge(names.LOOP_STALL, {(): recorder.loop_stall.read(now)})


def _capacity(snapshot: Snapshot) -> Iterator[Family]:
    backends = snapshot.backends
    free: dict[tuple[str, ...], float] = {}
    free |= {(each.name,): each.kv_free for each in backends if each.kv_free is not None}
    yield _gauge(names.BACKEND_KV_FREE, free)
    yield _gauge(names.BACKEND_STALE, {(each.name,): float(each.stale) for each in backends})
    levels: dict[tuple[str, ...], float] = {}
    levels |= {(each.name,): each.budget_level for each in backends if each.budget_level is not None}
    yield _gauge(names.BUDGET_LEVEL, levels)
    yield _gauge(names.RESERVE_SHORT, {(): float(any(row.reserve_short for row in snapshot.bands))})


def _replica(replica: ReplicaSource) -> Iterator[Family]:
    counts = replica.counts()
    yield _gauge(names.STORE_DEGRADED, {(): float(replica.degraded)})
    yield _gauge(names.SAME_NAME, {(): float(replica.namesakes)})
    yield _gauge(names.OTHER_BACKENDS, {(): float(replica.differing)})
    yield _counter(names.STORE_CALLS, {("completed",): counts.calls, ("failed",): counts.failures})
    yield _counter(names.STORE_CALL_SECONDS, {(): counts.call_s})
    grants: dict[tuple[str, ...], float] = {
        ("used",): counts.grants,
        ("late",): counts.late,
        ("wasted",): counts.wasted,
    }
    yield _counter(names.GRANTS, grants)
    yield _counter(names.SOLO_SECONDS, {(): counts.solo_s})


def _counter(metric: Metric, values: Mapping[tuple[str, ...], float]) -> Family:
    return Family(metric, [(series(metric.name, metric.labels, key), value) for key, value in values.items()])


_gauge = _counter


def _histogram(metric: Metric, values: dict[tuple[str, ...], Histogram]) -> Family:
    family = Family(metric, [])
    for key, histogram in values.items():
        edges, counts = histogram.cumulative()
        starts = bucket_series(metric.name, metric.labels, key, edges)
        family.samples.extend(zip(starts, (*counts, counts[-1], histogram.total), strict=True))
    return family
