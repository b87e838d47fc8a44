"""A plain model of vLLM's batch around ``vllm_plugin.decide``: slots, blocks, one token a step, admission in order.

It follows what ``vllm_plugin.engine`` relies on: whoever waits is admitted in the order of (place, arrival) until the
first that does not fit; a running request that finds no block has the one with the largest place stopped.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.vllm_plugin.decide import (
    Allowance,
    Member,
    Patience,
    Runner,
    Waiter,
    headroom,
    make_room,
    place,
)
from tidegate.vllm_plugin.rules import Rules

BLOCK = 4
STEP_S = 0.05


@dataclass(slots=True, eq=False)
class Sequence:
    """A request of the model; ``done`` tokens of ``prompt + output`` are computed."""

    number: int
    told: int
    prompt: int
    output: int
    member: Member
    written: int = 0
    done: int = 0
    place: int = 0
    ended: bool = False

    @property
    def blocks(self) -> int:
        return -(-self.done // BLOCK)

    @property
    def target(self) -> int:
        return self.prompt + self.written


@dataclass(slots=True)
class Batch:
    """The model. Everything that a rule forbids is asserted where it would happen."""

    rules: Rules
    slots: int
    total: int
    now: float = 0.0
    waiting: list[Sequence] = field(default_factory=list)
    running: list[Sequence] = field(default_factory=list)
    stops: list[float] = field(default_factory=list)
    largest: int = 0
    short: int = 0
    admissions: list[Sequence] = field(default_factory=list)
    made: int = 0
    allowance: Allowance = field(init=False)
    patience: Patience = field(init=False)

    def __post_init__(self) -> None:
        self.allowance, self.patience = Allowance(self.rules.preemptions_per_s), Patience(self.rules)

    @property
    def free(self) -> int:
        return self.total - sum(each.blocks for each in self.running)

    def add(self, band: int, prompt: int, output: int) -> Sequence:
        self.made += 1
        sequence = Sequence(self.made, band, prompt, output, Member(band, self.now))
        self._wait(sequence)
        return sequence

    def step(self) -> None:
        self.now += STEP_S
        for each in self.running:
            each.place = place(each.member, each.done)
        chosen = self.patience.promote([each.member for each in self.waiting], self.now)
        for each in self.waiting:
            if each.member is chosen:
                each.place = place(each.member, 0)
        self._sort()
        self._make_room()
        if self._decode():
            self._admit()
        for each in [each for each in self.running if each.written >= each.output]:
            each.ended = True
            self.running.remove(each)

    def _wait(self, sequence: Sequence) -> None:
        if not sequence.place:
            sequence.place = place(sequence.member, 0)
        sequence.member.since, sequence.done = self.now, 0
        self.waiting.append(sequence)
        self._sort()

    def _sort(self) -> None:
        self.waiting.sort(key=lambda each: (each.place, each.number))

    def _make_room(self) -> None:
        growth = sum(each.done % BLOCK == 0 for each in self.running)
        waiters = [Waiter(each.member, -(-each.target // BLOCK)) for each in self.waiting]
        runners = [Runner(each.member, each.done, each.blocks, each) for each in self.running]
        slots, blocks = self.slots - len(self.running), self.free - growth
        groups = make_room(waiters, runners, self.rules, slots=slots, blocks=blocks, total=self.total)
        best = self.waiting[0].member.band if self.waiting else 99
        for group in groups:
            self.largest = max(self.largest, len(group))
            if not self.allowance.grant(self.now, len(group)):
                break
            for runner in group:
                assert runner.member.band > best, "stopped for one that is not of a higher band"
                assert self.rules.bands[runner.member.band].preemptible
                assert not runner.member.promoted, "what it was given for its wait is taken back"
                runner.member.stops += 1
                assert runner.member.stops <= self.rules.max_preemptions
                self.stops.append(self.now)
                self._stop(runner.handle)  # type: ignore[arg-type]

    def _stop(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._wait(sequence)

    def _decode(self) -> bool:
        """Write a token each; ``False`` when memory was short, in which case nobody is admitted in this step."""
        calm = True
        for each in list(self.running):
            while each in self.running and each.done % BLOCK == 0 and self.free < 1:
                victim = max(self.running, key=lambda other: (other.place, other.number))
                assert victim.member.band >= each.member.band, "a higher band paid for a lower one's memory"
                self.short += 1
                calm = False
                self._stop(victim)
            if each in self.running:
                each.done += 1
                each.written += 1
        return calm

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.slots:
            first = self.waiting[0]
            keep = headroom(first.member, self.rules, self.total) if self.running else 0
            if -(-first.target // BLOCK) + keep > self.free:
                break
            self.waiting.pop(0)
            first.done = first.target
            first.written += 1
            self.running.append(first)
            self.admissions.append(first)
            self.patience.admitted()
