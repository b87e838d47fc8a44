"""The world's edges: pages that are read late, clients that leave, and the baselines."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tidegate.core import BackendSpec, Outcome, Policy, PoolSpec, Reading, Reason, Signal
from tidegate.simulation import (
    EngineModel,
    EngineServer,
    FifoGate,
    FixedServer,
    Request,
    Scrape,
    Ungated,
    World,
    fixed,
    requests,
)

POLICY = Policy(pools=(PoolSpec("m", (BackendSpec("b", 2),)),))


class Listening(World):
    """Notes what the scheduler is told."""

    heard: list[tuple[float, Signal]]

    def observe(self, now: float, signal: Signal) -> None:
        self.heard.append((now, signal))
        super().observe(now, signal)


def test_pages_are_read_now_and_then_and_show_a_moment_that_is_past() -> None:
    model = EngineModel(kv_tokens=16_000)
    load = requests(fixed(2.0), band=0, count=20, lengths=lambda: (400, 200))
    world = Listening(POLICY, {"b": EngineServer(model)}, load, scrape=Scrape(every_s=1.0, late_s=0.25, spread=0.2))
    world.heard = []
    log = world.run()
    assert all(entry.outcome is Outcome.COMPLETED for entry in log.entries)
    times = [now for now, _ in world.heard]
    assert 8 < len(times) < 30  # it ends, though there would be pages for ever
    gaps = [after - before for before, after in pairwise(times)]
    assert min(gaps) >= 0.8 - 1e-9
    assert max(gaps) <= 1.2 + 1e-9
    assert len(set(gaps)) > len(gaps) / 2
    pages = [signal for _, signal in world.heard if isinstance(signal, Reading)]
    assert [page.at for page in pages] == times
    assert pages[0].kv_tokens == 16_000
    assert any(page.running for page in pages)
    assert all(page.generated is not None and page.generated <= model.counters.generated for page in pages)


def test_a_page_is_as_old_as_the_last_step() -> None:
    server = EngineServer(EngineModel("slow"))
    server.start(0.0, 0, Request(0.0, 0, "t", 2000, 5))
    assert server.page.running == server.page.waiting == 0
    server.advance(server.next_event(), World(POLICY, {}, []))
    assert (server.page.running, server.page.waiting) == (0, 1)  # its first step goes on


@pytest.mark.parametrize("gated", [True, False])
def test_clients_leave_a_queue_and_an_answer(gated: bool) -> None:
    """Two run for 10 s, one waits; all have 5 s. What they held is free for the next."""
    load = [Request(float(n) / 10, 0, patience_s=5.0) for n in range(3)] + [Request(6.0, 0, patience_s=60.0)]
    gate = POLICY if gated else FifoGate("b", 2)
    log = World(gate, {"b": FixedServer(10.0)}, load).run()
    assert [entry.outcome for entry in log.entries] == [Outcome.CANCELLED] * 3 + [Outcome.COMPLETED]
    assert [entry.reason for entry in log.entries] == [Reason.CANCELLED] * 3 + [None]
    assert [entry.finished for entry in log.entries] == pytest.approx([5.0, 5.1, 5.2, 16.0])
    assert log.entries[3].dispatched == 6.0


def test_an_engine_forgets_those_who_left() -> None:
    model = EngineModel("slow")
    load = [Request(0.0, 0, "t", 400, 400, patience_s=1.0), Request(0.0, 0, "t", 400, 20, patience_s=0.001)]
    log = World(Ungated("b"), {"b": EngineServer(model)}, load).run()
    assert [entry.outcome for entry in log.entries] == [Outcome.CANCELLED] * 2
    assert log.entries[0].first_token is not None
    assert (model.running, model.waiting, model.counters.finished, model.counters.aborted) == (0, 0, 0, 2)


def test_baselines_know_only_the_order_of_arrival() -> None:
    load = [Request(n / 10, 2 - n, "t") for n in range(3)]
    fifo = World(FifoGate("b", 1), {"b": FixedServer(1.0)}, load).run()
    assert [entry.finished for entry in fifo.entries] == pytest.approx([1.0, 2.0, 3.0])
    bare = World(Ungated("b"), {"b": FixedServer(1.0)}, load).run()
    assert [entry.finished for entry in bare.entries] == pytest.approx([1.0, 1.1, 1.2])
