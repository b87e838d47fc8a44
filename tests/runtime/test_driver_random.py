"""Random hours against the real scheduler: every waiter answered once, no seat lost, and the log replays exactly."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.stories import ticket, total
from tidegate.core import (
    Action,
    BackendSpec,
    Health,
    Lease,
    Outcome,
    Policy,
    PolicyError,
    PoolSpec,
    Reason,
    Release,
    Scheduler,
    Seats,
)
from tidegate.runtime import Driver, EventLog, Refusal, replay
from tidegate.telemetry import Recorder
from tidegate.testing import LoopClock, run_virtual

POLICY = Policy(pools=(PoolSpec("m", (BackendSpec("a", 3), BackendSpec("b", 2))),))
OTHERS = (
    replace(POLICY, queue_capacity=40),
    replace(POLICY, bands=tuple(replace(band, capacity=8) for band in POLICY.bands)),
    replace(POLICY, pools=(PoolSpec("m", (BackendSpec("a", 1), BackendSpec("b", 6))),)),
    replace(POLICY, bands=POLICY.bands[:2]),  # refused: bands stay while running
    POLICY,
)


pytestmark = pytest.mark.interpreted


class Tracing(Recorder):
    """A recorder that keeps the actions."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.trace: list[tuple[float, Action]] = []

    def actions(self, now: float, actions: list[Action]) -> None:
        super().actions(now, actions)
        self.trace += [(now, action) for action in actions]


class Client:
    """One request that behaves at random, within its own callbacks too."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.answers = 0
        self.left = False

    def start(self) -> None:
        self.world.driver.submit(ticket(self.world.random.choice([0, 1, 1, 2, 2, 2]), name=self.name), self)

    def leave(self) -> None:
        self.left = self.world.driver.cancel(self.name) or self.left
        assert not (self.left and self.answers)

    def dispatched(self, lease: Lease) -> None:
        assert not self.left
        self.answers += 1
        self.world.stir()
        if self.world.random.random() < 0.1:
            self.end(lease)
        else:
            self.world.loop.call_later(self.world.random.expovariate(1 / 4), self.end, lease)

    def refused(self, action: Refusal) -> None:
        assert not self.left
        self.answers += 1
        self.world.stir()

    def end(self, lease: Lease) -> None:
        outcome = self.world.random.choice([Outcome.COMPLETED, Outcome.FAILED, Outcome.CANCELLED])
        reason = Reason.UPSTREAM_ERROR if outcome is Outcome.FAILED else None
        self.world.driver.release(lease, Release(outcome, 20, 15), reason=reason)


class World:
    """A driver, its clients and the trouble they get."""

    def __init__(self, seed: int, path: Path) -> None:
        self.random = random.Random(seed)
        self.loop = asyncio.get_running_loop()
        self.recorder = Tracing(POLICY)
        self.scheduler = Scheduler(POLICY)
        self.log = EventLog(path, POLICY)
        self.driver = Driver(self.scheduler, LoopClock(), self.recorder, event_log=self.log)
        self.clients: list[Client] = []

    def stir(self) -> None:
        """Now and then do something from inside a callback."""
        chance = self.random.random()
        if chance < 0.1:
            self.arrive()
        elif chance < 0.3 and self.clients:
            self.random.choice(self.clients[-30:]).leave()

    def arrive(self) -> None:
        client = Client(self, f"r{len(self.clients)}")
        self.clients.append(client)
        client.start()

    def trouble(self) -> None:
        match self.random.randrange(4):
            case 0:
                self.driver.observe(Seats(self.random.choice("ab"), self.random.randrange(6)))
            case 1:
                self.driver.observe(Health(self.random.choice("ab"), up=self.random.random() < 0.7))
            case 2:
                with contextlib.suppress(PolicyError):
                    self.driver.set_policy(self.random.choice(OTHERS))
            case _:
                self.random.choice(self.clients).leave()

    async def run(self, requests: int) -> None:
        while len(self.clients) < requests:
            for _ in range(self.random.choice([1, 1, 1, 40])):
                self.arrive()
            if self.random.random() < 0.3:
                self.trouble()
            await asyncio.sleep(self.random.expovariate(0.5))
        assert await self.driver.drain(7200) == 0
        self.driver.close()


@pytest.mark.parametrize("seed", range(12))
def test_every_waiter_is_answered_once_and_the_log_replays_exactly(seed: int, tmp_path: Path) -> None:
    async def story() -> World:
        world = World(seed, tmp_path / "events.jsonl")
        await world.run(600)
        return world

    world = run_virtual(story())
    assert [client.name for client in world.clients if client.answers + client.left != 1] == []
    assert total(world.recorder) == len(world.clients)
    snapshot = world.driver.snapshot()
    assert (snapshot.queued, snapshot.running) == (0, 0)
    assert all(backend.running == 0 for backend in snapshot.backends)
    assert all(account.depth == 0 for account in world.recorder.accounts.values())
    assert {count.value for each in world.recorder.accounts.values() for count in each.running.values()} == {0}
    assert [(now, repr(action)) for now, action in replay(tmp_path / "events.jsonl")] == [
        (now, repr(action)) for now, action in world.recorder.trace
    ]


def test_what_the_recorder_counts_agrees_with_the_snapshot_at_every_moment(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(99, tmp_path / "events.jsonl")

        def compare() -> None:
            snapshot = world.driver.snapshot()
            for account in world.recorder.accounts.values():
                rows = [row for row in snapshot.bands if row.name == account.name]
                assert account.depth == sum(row.depth for row in rows)
                assert account.dispatched == sum(row.dispatches for row in rows)
                assert account.overtakes == sum(row.overtakes for row in rows)
            for backend in snapshot.backends:
                held = sum(each.running[backend.name].value for each in world.recorder.accounts.values())
                assert held == backend.running
            world.loop.call_later(1.7, compare)

        compare()
        await world.run(400)

    run_virtual(story())
