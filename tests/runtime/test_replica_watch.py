"""What is said of gateways of one name and of files that differ; on virtual time, with the ledger in memory."""

from __future__ import annotations

import asyncio
from fractions import Fraction
from typing import Any

import pytest
from structlog.testing import capture_logs

from tidegate.core import BackendSpec, Policy, PoolSpec, Scheduler
from tidegate.runtime import Driver
from tidegate.runtime.replica_pools import Replica, ReplicaTerms
from tidegate.stores.ledger_identity import Differences
from tidegate.stores.ledger_memory import MemoryLedger, MemoryLedgerStore
from tidegate.stores.ledger_protocol import PoolConfig, PoolView
from tidegate.telemetry import Recorder
from tidegate.testing import LoopClock, run_virtual


class Gateway:
    """One that shares its pool, without any work."""

    def __init__(self, store: MemoryLedgerStore, name: str, run: str, **seats: int) -> None:
        backends = tuple(BackendSpec(each, count) for each, count in (seats or {"b": 4}).items())
        policy = Policy(pools=(PoolSpec("m", backends),))
        terms = ReplicaTerms(name, run=run, first_part=Fraction(1, 8))
        self.replica = Replica(terms, store, Scheduler(policy), LoopClock())
        self.recorder = Recorder(policy)
        self.recorder.replica = self.replica
        self.replica.join(Driver(self.replica.scheduler, LoopClock(), self.recorder).observe)

    def config(self, version: int) -> PoolConfig:
        return self.replica.config(self.replica.policy.pools[0], version=version, mode="normal", document="")

    async def start(self, version: int = 1) -> None:
        await self.replica.links["m"].ledger.configure(self.config(version))
        self.replica.start()

    def die(self) -> None:
        """Fall silent, as a process that is killed."""
        link = self.replica.links["m"]
        link.go_on = lambda: None  # type: ignore[method-assign]
        link.changed = lambda: None  # type: ignore[method-assign]
        if link._timer is not None:
            link._timer.cancel()

    def metric(self, name: str) -> float:
        text = self.recorder.exposition().decode()
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))


def said(logs: list[Any], event: str) -> list[Any]:
    return [row for row in logs if row["event"] == event]


def test_two_of_one_name_are_told_by_log_metric_and_state_until_one_has_gone() -> None:
    async def story() -> None:
        store = MemoryLedgerStore()
        one, two, other = Gateway(store, "gw", "1a"), Gateway(store, "gw", "2b"), Gateway(store, "x", "3c")
        with capture_logs() as logs:
            for each in (one, two, other):
                await each.start()
            await asyncio.sleep(4)
            assert [(each.replica.namesakes, each.metric("tidegate_same_name")) for each in (one, two, other)] == [
                (1, 1.0),
                (1, 1.0),
                (0, 0.0),
            ]
            document = await other.replica.document()
            rows = document["pools"]["m"]["replicas"]
            assert [(row["name"], row["run"], row["same_name"]) for row in rows] == [
                ("gw", "1a", True),
                ("gw", "2b", True),
                ("x", "3c", False),
            ]
            assert ((await one.replica.document())["same_name"], document["same_name"]) == (1, 0)
            assert [(row["replica"], row["others"], row["log_level"]) for row in said(logs, "cluster.same_name")] == [
                ("gw", 1, "error")
            ] * 2
            await two.replica.stop()
            await asyncio.sleep(12)
        assert one.replica.namesakes == 0
        assert len(said(logs, "cluster.same_name")) == 2
        assert len(said(logs, "cluster.same_name_over")) == 1
        for each in (one, other):
            await each.replica.stop()

    run_virtual(story())


def test_one_that_is_started_anew_after_a_kill_is_not_told_of_and_has_its_seats_back_before_they_run_out() -> None:
    async def story() -> None:
        store = MemoryLedgerStore()
        before, after = Gateway(store, "gw", "1a"), Gateway(store, "gw", "2b")
        with capture_logs() as logs:
            await before.start()
            await asyncio.sleep(3)
            before.die()
            await before.replica.watch.stop()
            await asyncio.sleep(0.3)
            await after.start()
            await asyncio.sleep(3.5)
            rows = (await after.replica.document())["pools"]["m"]["replicas"]
            assert [row["run"] for row in rows] == ["2b"]
            await asyncio.sleep(10)
        assert said(logs, "cluster.same_name") == []
        assert [row["replica"] for row in said(logs, "cluster.earlier_run_ended")] == ["gw~1a"]
        await after.replica.stop()
        before.replica.watch = after.replica.watch
        await before.replica.stop()

    run_virtual(story())


OTHERS: list[tuple[dict[str, int], Differences]] = [
    ({"b": 4}, Differences()),
    ({"b": 8}, Differences(seats=(("b", 4, 8),))),
    ({"b": 4, "c": 2}, Differences(unknown=("c",))),
    ({"c": 2}, Differences(not_dealt=("b",), unknown=("c",))),
]


@pytest.mark.parametrize(("other", "expected"), OTHERS)
def test_a_file_with_other_backends_is_told(other: dict[str, int], expected: Differences) -> None:
    async def story() -> None:
        store = MemoryLedgerStore()
        first, last = Gateway(store, "a", "1a"), Gateway(store, "b", "2b", **other)
        with capture_logs() as logs:
            await first.start(1)
            await last.start(2)
            await asyncio.sleep(4)
            document = await first.replica.document()
            differs = document["pools"]["m"]["differs"]
            if not expected:
                assert (differs, first.metric("tidegate_other_backends")) == (None, 0.0)
                assert said(logs, "cluster.other_backends") == []
            else:
                seats = [{"name": name, "here": here, "dealt": dealt} for name, here, dealt in expected.seats]
                wanted = {"not_dealt": [*expected.not_dealt], "unknown": [*expected.unknown], "seats": seats}
                assert (differs, first.metric("tidegate_other_backends")) == (wanted, 1.0)
                [row] = said(logs, "cluster.other_backends")
                assert (row["pool"], row["not_dealt"], row["unknown"]) == ("m", wanted["not_dealt"], wanted["unknown"])
            assert (await last.replica.document())["pools"]["m"]["differs"] is None
            for each in (first, last):  # whoever is asked shows whose file is another one
                rows = (await each.replica.document())["pools"]["m"]["replicas"]
                own = each.replica.terms.name
                assert [row["differs"] for row in rows] == [bool(expected) and row["name"] != own for row in rows]
            await first.replica.links["m"].ledger.configure(first.config(3))
            await asyncio.sleep(12)
        assert first.replica.watch.differing == {}
        assert bool(said(logs, "cluster.other_backends_over")) is bool(expected)
        for each in (first, last):
            await each.replica.stop()

    run_virtual(story())


def test_what_differs_for_a_moment_is_not_told() -> None:
    async def story() -> None:
        store = MemoryLedgerStore()
        first = Gateway(store, "a", "1a")
        with capture_logs() as logs:
            await first.start(1)
            await asyncio.sleep(4)
            await first.replica.links["m"].ledger.configure(Gateway(store, "b", "2b", c=1).config(2))
            await asyncio.sleep(1.2)
            await first.replica.links["m"].ledger.configure(first.config(3))
            await asyncio.sleep(9)
        assert said(logs, "cluster.other_backends") == []
        assert said(logs, "cluster.other_backends_over") == []
        await first.replica.stop()

    run_virtual(story())


def test_a_store_that_does_not_answer_changes_nothing_that_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        store = MemoryLedgerStore()
        one, two = Gateway(store, "gw", "1a"), Gateway(store, "gw", "2b")
        with capture_logs() as logs:
            for each in (one, two):
                await each.start()
            await asyncio.sleep(4)

            async def hang(self: object) -> None:
                await asyncio.sleep(60)

            monkeypatch.setattr(type(one.replica.links["m"].ledger), "view", hang)
            await asyncio.sleep(12)
        assert (one.replica.namesakes, len(said(logs, "cluster.same_name_over"))) == (1, 0)
        for each in (one, two):
            await each.replica.stop()

    run_virtual(story())


def test_a_fault_while_it_looks_does_not_end_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        store = MemoryLedgerStore()
        one, two = Gateway(store, "gw", "1a"), Gateway(store, "gw", "2b")
        view, faults = type(store.pool("x")).view, [ValueError("odd")] * 5

        async def odd(self: MemoryLedger) -> PoolView | None:
            if faults:
                raise faults.pop()
            return await view(self)

        monkeypatch.setattr(MemoryLedger, "view", odd)
        for each in (one, two):
            await each.start()
        with capture_logs() as logs:
            await asyncio.sleep(8)
        assert len(said(logs, "cluster.fault")) == 5
        assert (one.replica.namesakes, two.replica.namesakes) == (1, 1)
        for each in (one, two):
            await each.replica.stop()

    run_virtual(story())
