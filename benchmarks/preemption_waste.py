"""What stopping work throws away, by the length of prompts and answers, in virtual time.

p2 fills 32 seats of an engine of profile ``h100-8b`` without end, and p0 comes four times a second with no reserve. The
prefix cache keeps whole blocks of 16 tokens, so that what is computed again is the part of a block at the end of what a
stopped answer had: half a block for each stop, however long the stream is.

Waste counts as in the gateway's metric: a token that is computed for the second time. All computed tokens are those of
prompts and answers, of p0 too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from benchmarks.preemption_bursts import policy
from tidegate.core import Action, Dispatch, Stoppable
from tidegate.simulation import (
    EngineModel,
    EngineServer,
    Fleeting,
    Record,
    Request,
    World,
    merged,
    poisson,
    requests,
    stream_random,
)
from tidegate.simulation.servers import Leg

SEATS = 32
P0_A_SECOND, P0_LENGTHS = 4.0, (20, 4)
LENGTHS = ((60, 170), (1_000, 400), (6_000, 1_500))
RATES = (Fraction(1, 20), Fraction(1))
SECONDS = 300.0


@dataclass(slots=True)
class Cost:
    """What a run computed, and what of it for the second time."""

    dispatches: int = 0
    stops: int = 0
    computed: int = 0
    wasted: int = 0

    @property
    def part(self) -> float:
        """Of all computed tokens."""
        return self.wasted / self.computed

    @property
    def a_stop(self) -> float:
        """Tokens computed again for each stop; 0 when nobody was stopped."""
        return self.wasted / self.stops if self.stops else 0.0


class Costing(World):
    """Adds up what its scheduler does and its engine computes, and lets a new p2 come for each that has ended."""

    def __init__(self, rate: Fraction, first: Iterator[Request], following: Callable[[float], Request]) -> None:
        engine = EngineServer(EngineModel("h100-8b"))
        rule = policy(SEATS, rate)
        super().__init__(rule, {"b": engine}, first, sink=self._ended, stoppable=Stoppable.ALWAYS, log=Fleeting())
        self.cost = Cost()
        self._following = following

    def _ended(self, record: Record) -> None:
        self.cost.computed += record.computed_tokens
        self.cost.wasted += record.wasted_tokens
        if record.band == 2 and record.finished_s is not None:
            self.offer(record.finished_s, self._following(record.finished_s))

    def _obey(self, now: float, actions: list[Action]) -> None:
        self.cost.dispatches += sum(isinstance(action, Dispatch) for action in actions)
        super()._obey(now, actions)

    def paused(self, now: float, number: int, leg: Leg) -> None:
        """See ``Progress``: one that ends in the step in which it should stop is not among them."""
        self.cost.stops += 1
        super().paused(now, number, leg)


def play(prompt: int, answer: int, rate: Fraction, *, seconds: float = SECONDS, seed: int = 1) -> Cost:
    """Keep all seats full of p2 of these lengths, each up to 15 tokens longer, while p0 comes."""
    draw = stream_random(seed, "lengths")

    def long_one(at: float) -> Request:
        return Request(at, 2, prompt_tokens=prompt + draw.randrange(16), output_tokens=answer + draw.randrange(16))

    times = poisson(P0_A_SECOND, stream_random(seed, "p0"), start=5.0)
    p0 = requests(times, band=0, lengths=lambda: P0_LENGTHS, until=seconds)
    world = Costing(rate, merged([long_one(0.1 * number) for number in range(2 * SEATS)], p0), long_one)
    world.run(until=seconds)
    return world.cost


def run(seconds: float = SECONDS) -> Iterator[tuple[str, str, str]]:
    """Yield a row for each pair of lengths and each limit on stops."""
    for prompt, answer in LENGTHS:
        for rate in RATES:
            cost = play(prompt, answer, rate, seconds=seconds)
            yield (
                f"p2 of {prompt:,} + {answer:,} tokens, preempt_rate {float(rate):g}: computed again, of all computed",
                f"{cost.part:.2%}; {cost.a_stop:.1f} a stop, {cost.stops / cost.dispatches:.1%} of dispatches stopped",
                "≤ 0.1 % (long streams)",
            )
