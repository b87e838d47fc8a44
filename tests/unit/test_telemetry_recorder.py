from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from time import process_time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tidegate.core import (
    Action,
    BackendSpec,
    Dispatch,
    Evict,
    Lease,
    Outcome,
    Policy,
    PoolSpec,
    Promote,
    Reason,
    Reject,
    Release,
    Scheduler,
    Snapshot,
    Ticket,
    Turn,
    WorkEstimate,
)
from tidegate.core.policy import P0, P1
from tidegate.telemetry import Recorder
from tidegate.telemetry.accounts import WindowMax

POLICY = Policy(pools=(PoolSpec("m", (BackendSpec("b", 4),)),))
_ids = itertools.count()


class Frozen:
    """A driver whose scheduler and time stand still."""

    def __init__(self, scheduler: Scheduler, now: float = 100.0) -> None:
        self._scheduler = scheduler
        self._now = now

    def now(self) -> float:
        return self._now

    def snapshot(self) -> Snapshot:
        return self._scheduler.snapshot(self._now)


def ticket(band: int = 0, *, pool: str = "m", output_tokens: int = 100) -> Ticket:
    return Ticket(f"t{next(_ids)}", pool, band, "tenant", WorkEstimate(10, output_tokens))


def lease(held: Ticket, *, kind: Turn = Turn.TURN, waited_s: float = 0.5, band: int | None = None) -> Lease:
    return Lease(next(_ids), held, "b", kind, held.band if band is None else band, waited_s, 10.0)


def values(recorder: Recorder) -> dict[tuple[str, ...], float]:
    """Samples by (name, label values in the order of their names)."""
    found = {}
    for family in text_string_to_metric_families(recorder.exposition().decode()):
        for sample in family.samples:
            found[sample.name, *(value for _, value in sorted(sample.labels.items()))] = sample.value
    return found


def nonzero(recorder: Recorder, name: str) -> dict[tuple[str, ...], float]:
    return {key[1:]: value for key, value in values(recorder).items() if key[0] == name and value}


def test_each_way_a_ticket_ends_is_counted_once() -> None:
    recorder = Recorder(POLICY)
    ran, failed, left = ticket(0), ticket(1), ticket(2)
    for one in (ran, failed, left):
        held = lease(one)
        recorder.submitted(10.0, one, [Dispatch(one, held)])
        outcome = {ran: Outcome.COMPLETED, failed: Outcome.FAILED, left: Outcome.CANCELLED}[one]
        reason = Reason.UPSTREAM_TIMEOUT if one is failed else Reason.CANCELLED if one is left else None
        recorder.finished(12.0, held, Release(outcome), reason=reason)
    rejected, evicted, gone = ticket(0), ticket(1), ticket(2)
    recorder.submitted(10.0, rejected, [Reject(rejected, Reason.QUEUE_FULL)])
    for one in (evicted, gone):
        recorder.submitted(10.0, one, [])
    recorder.actions(20.0, [Evict(evicted, Reason.EXPIRED)])
    recorder.cancelled(20.0, gone)
    assert nonzero(recorder, "tidegate_requests_total") == {
        ("p0", "m", "completed"): 1,
        ("p1", "m", "failed"): 1,
        ("p2", "m", "cancelled"): 2,
        ("p0", "m", "rejected"): 1,
        ("p1", "m", "evicted"): 1,
    }
    assert nonzero(recorder, "tidegate_refusals_total") == {
        ("p1", "upstream_timeout"): 1,
        ("p0", "queue_full"): 1,
        ("p1", "expired"): 1,
    }


def test_refusals_before_a_ticket_exists_are_counted_with_bounded_labels() -> None:
    recorder = Recorder(POLICY)
    recorder.refused(Reason.UNAUTHORIZED)
    recorder.refused(Reason.UNKNOWN_MODEL, model="whatever the client wrote")
    recorder.refused(Reason.UNKNOWN_MODEL, model="and something else")
    recorder.refused(Reason.FORBIDDEN_BAND, band=1, model="m")
    assert nonzero(recorder, "tidegate_requests_total") == {
        ("none", "none", "rejected"): 1,
        ("none", "other", "rejected"): 2,
        ("p1", "m", "rejected"): 1,
    }
    assert nonzero(recorder, "tidegate_refusals_total")["none", "unknown_model"] == 2


def test_dispatches_and_overtakes_count_where_they_were_made_waits_where_the_ticket_is() -> None:
    recorder = Recorder(POLICY)
    lent, aged = ticket(2), ticket(2)
    actions: list[Action] = [
        Promote(lent, 0, "lent"),
        Promote(aged, 1, "age"),
        Dispatch(lent, lease(lent, band=0)),
        Dispatch(aged, lease(aged, kind=Turn.OVERTAKE)),
    ]
    recorder.actions(10.0, actions)
    assert nonzero(recorder, "tidegate_dispatch_total") == {("p0",): 1, ("p2",): 1}
    assert nonzero(recorder, "tidegate_overtakes_total") == {("p2",): 1}
    assert nonzero(recorder, "tidegate_promotions_total") == {("p2",): 1}
    assert nonzero(recorder, "tidegate_inheritances_total") == {(): 1}
    assert nonzero(recorder, "tidegate_queue_wait_seconds_count") == {("p2",): 2}


def test_times_fall_into_buckets_whose_edge_they_may_equal() -> None:
    recorder = Recorder(POLICY)
    held = lease(ticket(0), waited_s=0.5)
    recorder.actions(10.0, [Dispatch(held.ticket, held)])
    recorder.first_byte(held, 0.75)
    recorder.finished(12.5, held, Release())
    found = values(recorder)
    assert found["tidegate_queue_wait_seconds_bucket", "p0", "0.5"] == 1
    assert found["tidegate_queue_wait_seconds_bucket", "p0", "0.25"] == 0
    assert found["tidegate_queue_wait_seconds_bucket", "p0", "+Inf"] == 1
    assert found["tidegate_ttft_seconds_sum", "p0"] == 0.75
    assert found["tidegate_request_seconds_sum", "p0"] == pytest.approx(3.0)
    assert found["tidegate_request_seconds_bucket", "p0", "2.0"] == 0
    assert found["tidegate_request_seconds_bucket", "p0", "3.0"] == 1


def test_tokens_estimates_and_waste_come_from_the_usage() -> None:
    recorder = Recorder(POLICY)
    for outcome, used in ((Outcome.COMPLETED, (12, 50)), (Outcome.CANCELLED, (10, 7)), (Outcome.FAILED, (None, None))):
        held = lease(ticket(1))
        recorder.finished(12.0, held, Release(outcome, *used))
    assert nonzero(recorder, "tidegate_tokens_total") == {("p1", "input"): 22, ("p1", "output"): 57}
    assert nonzero(recorder, "tidegate_wasted_tokens_total") == {("cancelled",): 17}
    found = values(recorder)
    assert found["tidegate_estimate_error_ratio_sum", "p1", "input"] == pytest.approx(2.2)
    assert found["tidegate_estimate_error_ratio_count", "p1", "output"] == 1
    assert found["tidegate_estimate_error_ratio_sum", "p1", "output"] == pytest.approx(0.5)


def test_answers_that_go_on_are_counted_by_why_they_had_to() -> None:
    recorder = Recorder(POLICY)
    held = lease(ticket(2))
    recorder.preempted(held, 0)
    recorder.resumed("preempted", 0.2)
    recorder.resumed("broken", 3.0)
    recorder.not_resumed("broken")
    recorder.recomputed("preempted", 9)
    assert nonzero(recorder, "tidegate_preemptions_total") == {("p0", "p2"): 1}  # by, victim
    assert nonzero(recorder, "tidegate_resumes_total") == {
        ("preempted", "completed"): 1,
        ("broken", "completed"): 1,
        ("broken", "failed"): 1,
    }
    assert nonzero(recorder, "tidegate_seam_seconds_sum") == {("preempted",): 0.2, ("broken",): 3.0}
    assert nonzero(recorder, "tidegate_wasted_tokens_total") == {("preempted",): 9}


def test_what_is_only_observed_is_counted_by_reason() -> None:
    pools = (PoolSpec("m", (BackendSpec("b", 1),)),)
    policy = Policy(pools=pools, bands=(P0, replace(P1, capacity=2)), observe_only=True)
    recorder, scheduler = Recorder(policy), Scheduler(policy)
    recorder.source = Frozen(scheduler)
    assert nonzero(recorder, "tidegate_would_total") == {}
    for _ in range(5):  # one runs, two may wait
        scheduler.submit(1.0, ticket(1))
    assert nonzero(recorder, "tidegate_would_total") == {("queue_full",): 2}


def test_gauges_are_the_schedulers_own_numbers() -> None:
    scheduler = Scheduler(POLICY)
    recorder = Recorder(POLICY)
    for number in range(7):
        one = ticket(2)
        recorder.submitted(90.0 + number, one, scheduler.submit(90.0 + number, one))
    recorder.source = Frozen(scheduler)
    found = values(recorder)
    assert found["tidegate_queue_depth", "p2"] == 3
    assert found["tidegate_queue_depth", "p0"] == 0
    assert found["tidegate_queue_depth_max", "p2"] == 3
    assert found["tidegate_oldest_wait_seconds", "p2"] == 6
    assert found["tidegate_running", "b", "p2"] == 4
    assert found["tidegate_seats", "b"] == 4
    assert found["tidegate_backend_up", "b"] == 1
    assert found["tidegate_mode", "normal"] == 1
    assert found["tidegate_loop_stall_seconds",] == 0


def test_a_peak_of_the_queue_shows_for_a_minute() -> None:
    recorder = Recorder(POLICY)
    waiting = [ticket(0) for _ in range(5)]
    for one in waiting:
        recorder.submitted(100.0, one, [])
    for one in waiting:
        recorder.cancelled(101.0, one)
    for now, peak in ((102.0, 5.0), (149.0, 5.0), (165.0, 0.0)):
        recorder.source = Frozen(Scheduler(POLICY), now)
        assert values(recorder)["tidegate_queue_depth_max", "p0"] == peak


def test_a_ticket_that_never_waits_makes_no_depth() -> None:
    recorder = Recorder(POLICY)
    one = ticket(0)
    recorder.submitted(100.0, one, [Dispatch(one, lease(one))])
    recorder.source = Frozen(Scheduler(POLICY))
    assert values(recorder)["tidegate_queue_depth_max", "p0"] == 0


def test_clamps_are_counted_by_the_band_given() -> None:
    recorder = Recorder(POLICY)
    recorder.clamped(2)
    assert nonzero(recorder, "tidegate_clamped_total") == {("p2",): 1}


def test_demotions_are_counted_by_the_band_that_they_ran_in() -> None:
    recorder = Recorder(POLICY)
    recorder.demoted(1)
    assert nonzero(recorder, "tidegate_demoted_total") == {("p1",): 1}
    assert nonzero(recorder, "tidegate_clamped_total") == {}


def test_a_model_that_a_new_policy_brings_gets_its_label() -> None:
    recorder = Recorder(POLICY)
    recorder.submitted(1.0, new := ticket(pool="n"), [Reject(new, Reason.QUEUE_FULL)])
    recorder.set_policy(Policy(pools=(PoolSpec("n", (BackendSpec("c", 1),)),)))
    recorder.submitted(1.0, new := ticket(pool="n"), [Reject(new, Reason.QUEUE_FULL)])
    assert nonzero(recorder, "tidegate_requests_total") == {
        ("p0", "other", "rejected"): 1,
        ("p0", "n", "rejected"): 1,
    }


@pytest.mark.bench
def test_what_counting_costs(capsys: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder(POLICY)
    held = [lease(ticket(number % 3)) for number in range(50_000)]
    used = Release(Outcome.COMPLETED, 12, 90)
    began = process_time()
    for one in held:
        recorder.submitted(1.0, one.ticket, [])
        recorder.actions(1.0, [Dispatch(one.ticket, one)])
        recorder.first_byte(one, 0.3)
        recorder.finished(3.0, one, used)
    cost_us = (process_time() - began) / len(held) * 1e6
    recorder.source = Frozen(Scheduler(POLICY))
    began = process_time()
    size = len(recorder.exposition())
    with capsys.disabled():
        sys.stdout.write(
            f"\nrecorder: {cost_us:.1f} µs per request; exposition: {(process_time() - began) * 1e3:.1f} ms, {size} B\n"
        )
    assert cost_us < 20


def test_a_largest_value_is_known_for_as_long_as_its_slot_is_among_the_last() -> None:
    window = WindowMax(slot_s=10.0, slots=2)
    for now, value in ((0.0, 3.0), (9.9, 5.0), (9.95, 4.0), (10.0, 1.0), (19.0, 2.0)):
        window.note(now, value)
    assert [window.read(now) for now in (19.9, 20.0, 29.9, 30.0)] == [5.0, 2.0, 2.0, 0.0]
    window.note(31.0, 0.5)
    assert window.read(31.0) == 0.5
