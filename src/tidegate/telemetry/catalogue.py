"""Every metric of this version: name, kind, labels, meaning. ``docs/reference/metrics.md`` explains the same list."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Prometheus metric types in use."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(slots=True, frozen=True)
class Metric:
    """One metric as it stands in the exposition; counters end in ``_total``."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


REQUESTS = Metric(
    "tidegate_requests_total", Kind.COUNTER, ("band", "model", "outcome"), "Requests that ended, each counted once."
)
REFUSALS = Metric(
    "tidegate_refusals_total", Kind.COUNTER, ("band", "reason"), "Requests that got no answer from a model, by reason."
)
QUEUE_DEPTH = Metric("tidegate_queue_depth", Kind.GAUGE, ("band",), "Tickets waiting now.")
QUEUE_DEPTH_MAX = Metric(
    "tidegate_queue_depth_max", Kind.GAUGE, ("band",), "Most tickets that waited at once in the last minute."
)
QUEUE_WAIT = Metric(
    "tidegate_queue_wait_seconds", Kind.HISTOGRAM, ("band",), "Wait from arrival to dispatch, of dispatched tickets."
)
TTFT = Metric(
    "tidegate_ttft_seconds", Kind.HISTOGRAM, ("band",), "Time from arrival to the first byte of the model's answer."
)
REQUEST = Metric(
    "tidegate_request_seconds", Kind.HISTOGRAM, ("band",), "Time from arrival to the end, of dispatched tickets."
)
RUNNING = Metric("tidegate_running", Kind.GAUGE, ("band", "backend"), "Requests that hold a seat now.")
SEATS = Metric("tidegate_seats", Kind.GAUGE, ("backend",), "Requests that the backend may run at once.")
BACKEND_UP = Metric("tidegate_backend_up", Kind.GAUGE, ("backend",), "1 when the backend gets requests, 0 when not.")
BACKEND_KV_FREE = Metric(
    "tidegate_backend_kv_free_ratio",
    Kind.GAUGE,
    ("backend",),
    "Free part of the backend's KV cache, what was dispatched since the last reading taken off.",
)
BACKEND_STALE = Metric(
    "tidegate_backend_stale",
    Kind.GAUGE,
    ("backend",),
    "1 when the backend's own metrics are too old to be used, or do not move.",
)
BUDGET_LEVEL = Metric(
    "tidegate_budget_level", Kind.GAUGE, ("backend",), "Part of the backend's quotas that is left, the least of them."
)
RESERVE_SHORT = Metric(
    "tidegate_reserve_short", Kind.GAUGE, (), "1 when an automatic reserve would need more seats than it may take."
)
OLDEST_WAIT = Metric(
    "tidegate_oldest_wait_seconds", Kind.GAUGE, ("band",), "Longest wait among the tickets waiting now (starvation)."
)
DISPATCHES = Metric("tidegate_dispatch_total", Kind.COUNTER, ("band",), "Dispatches by the band they were made for.")
OVERTAKES = Metric(
    "tidegate_overtakes_total", Kind.COUNTER, ("band",), "Dispatches by age past waiting work of a higher band."
)
PROMOTIONS = Metric(
    "tidegate_promotions_total", Kind.COUNTER, ("band",), "Tickets that began to claim with the next higher band."
)
INHERITANCES = Metric(
    "tidegate_inheritances_total", Kind.COUNTER, (), "Tickets that a waiting caller lent its band to."
)
PREEMPTIONS = Metric(
    "tidegate_preemptions_total",
    Kind.COUNTER,
    ("victim", "by"),
    "Running requests that were stopped, by their band and the band that they were stopped for.",
)
RESUMES = Metric(
    "tidegate_resumes_total",
    Kind.COUNTER,
    ("cause", "outcome"),
    "Answers that had begun and went on after a stop or a broken stream (completed), or could not (failed).",
)
SEAM = Metric(
    "tidegate_seam_seconds",
    Kind.HISTOGRAM,
    ("cause",),
    "Pause in an answer that went on: from its last piece before the seam to the first one behind it.",
)
WASTED_TOKENS = Metric(
    "tidegate_wasted_tokens_total",
    Kind.COUNTER,
    ("cause",),
    "Tokens computed, as far as known, for requests that did not complete, and those computed again to go on.",
)
TOKENS = Metric("tidegate_tokens_total", Kind.COUNTER, ("band", "kind"), "Tokens that the backends reported.")
CLAMPED = Metric(
    "tidegate_clamped_total",
    Kind.COUNTER,
    ("band",),
    "Requests that asked for a higher band than their tenant may use, by the band given.",
)
DEMOTED = Metric(
    "tidegate_demoted_total",
    Kind.COUNTER,
    ("band",),
    "Requests whose prompt is too long for their band (max_input_tokens), by the lower band that they ran in.",
)
WOULD = Metric(
    "tidegate_would_total",
    Kind.COUNTER,
    ("reason",),
    "What a mode that only observes let through although the rules refuse it, hold it back or serve others first.",
)
MODE = Metric("tidegate_mode", Kind.GAUGE, ("mode",), "1 for the mode in force.")
ESTIMATE_ERROR = Metric(
    "tidegate_estimate_error_ratio", Kind.HISTOGRAM, ("band", "kind"), "Tokens really used over tokens estimated."
)
LOOP_STALL = Metric(
    "tidegate_loop_stall_seconds", Kind.GAUGE, (), "Longest time in the last 10 s that the event loop was late."
)

STORE_DEGRADED = Metric(
    "tidegate_store_degraded", Kind.GAUGE, (), "1 while the cluster's store does not answer, and each gateway is alone."
)
SAME_NAME = Metric(
    "tidegate_same_name",
    Kind.GAUGE,
    (),
    "Other living gateways of the cluster that have this one's name; each needs one of its own.",
)
OTHER_BACKENDS = Metric(
    "tidegate_other_backends",
    Kind.GAUGE,
    (),
    "Pools in which other backends or seats are dealt than the file of this gateway names.",
)
STORE_CALLS = Metric(
    "tidegate_store_calls_total", Kind.COUNTER, ("outcome",), "Calls to the cluster's store (completed, failed)."
)
STORE_CALL_SECONDS = Metric(
    "tidegate_store_call_seconds_total", Kind.COUNTER, (), "Time that the completed calls to the cluster's store took."
)
GRANTS = Metric(
    "tidegate_grants_total",
    Kind.COUNTER,
    ("outcome",),
    "Seats granted to this gateway: used, too late to be used (late), or with nothing left to start (wasted).",
)
SOLO_SECONDS = Metric(
    "tidegate_solo_seconds_total",
    Kind.COUNTER,
    (),
    "Time in which this gateway had but its last share, all pools added.",
)
WORKER_UP = Metric(
    "tidegate_worker_up",
    Kind.GAUGE,
    ("worker",),
    "1 when the metrics of this worker of serve --workers are on this page, 0 when it gave none in time.",
)

CATALOGUE = (
    REQUESTS,
    REFUSALS,
    QUEUE_DEPTH,
    QUEUE_DEPTH_MAX,
    OLDEST_WAIT,
    QUEUE_WAIT,
    TTFT,
    REQUEST,
    RUNNING,
    SEATS,
    BACKEND_UP,
    BACKEND_KV_FREE,
    BACKEND_STALE,
    BUDGET_LEVEL,
    RESERVE_SHORT,
    DISPATCHES,
    OVERTAKES,
    PROMOTIONS,
    INHERITANCES,
    PREEMPTIONS,
    RESUMES,
    SEAM,
    TOKENS,
    WASTED_TOKENS,
    ESTIMATE_ERROR,
    CLAMPED,
    DEMOTED,
    MODE,
    WOULD,
    LOOP_STALL,
    STORE_DEGRADED,
    SAME_NAME,
    OTHER_BACKENDS,
    STORE_CALLS,
    STORE_CALL_SECONDS,
    GRANTS,
    SOLO_SECONDS,
    WORKER_UP,
)
