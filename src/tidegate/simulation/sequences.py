"""The values that go into and come out of the engine model."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from tidegate.simulation.kv import BLOCK


class WaitingOrder(StrEnum):
    """How the engine orders its waiting sequences."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class Stage(Enum):
    """Where a sequence is."""

    WAITING = 0
    PREFILL = 1
    DECODING = 2
    DONE = 3


@dataclass(slots=True, eq=False)
class EngineSequence:
    """One sequence inside the engine.

    Attributes:
        id: unique while the sequence lives.
        prompt_tokens: length of the prompt, at least 1.
        output_tokens: tokens that it will generate, at least 1.
        priority: class, lower is earlier; only used by ``WaitingOrder.PRIORITY``.
        chain: keys of the cache units of its text from the start; may go on into the output.
        unit_tokens: tokens per unit of ``chain``, a multiple of 16.
        arrived: when it was added, seconds.
        number: order of arrival in this engine.
        owner: whose its blocks are in the cache: its number, or that of the sequence that it goes on with.
        generated: tokens generated when it last left the decoding stage (``EngineModel.generated`` while there).
        cached_tokens: prompt tokens that the prefix cache saved on its first admission.
        preemptions: how often it was preempted.
        recomputed: tokens that its preemptions made it compute again.
    """

    id: str
    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    chain: Sequence[Hashable] = ()
    unit_tokens: int = BLOCK
    arrived: float = field(default=0.0, init=False)
    number: int = field(default=0, init=False)
    owner: int = field(default=0, init=False)
    generated: int = field(default=0, init=False)
    cached_tokens: int = field(default=0, init=False)
    preemptions: int = field(default=0, init=False)
    recomputed: int = field(default=0, init=False)
    stage: Stage = field(default=Stage.WAITING, init=False)
    # What follows is the bookkeeping of the engine.
    target: int = field(default=0, init=False)  # tokens that the present prefill has to compute or hit
    computed: int = field(default=0, init=False)  # of those, done
    held: int = field(default=0, init=False)  # units of the chain that it refers to
    run_after: int = field(default=-1, init=False)  # units before its run, when it left one behind
    joined: int = field(default=0, init=False)  # step count minus generated tokens, constant while decoding


@dataclass(slots=True, frozen=True)
class Work:
    """What an engine has done for one sequence.

    Attributes:
        cached: prompt tokens that the prefix cache saved.
        computed: tokens of prompt and answer computed, recomputed ones included.
        recomputed: of those, the ones that had been computed before.
        preempted: how often it was preempted.
    """

    cached: int
    computed: int
    recomputed: int
    preempted: int


@dataclass(slots=True)
class StepResult:
    """What one step did.

    Attributes:
        duration_s: how long it takes; the tokens appear at its end. 0 means there was nothing to do.
        tokens: tokens computed, prefill and decode.
        prefilled: sequences whose prefill ended: each emitted a token, the first one unless it had been preempted.
        decoded: how many sequences decoded one token.
        finished: sequences that emitted their last token.
        preempted: sequences sent back to the waiting list.
    """

    duration_s: float = 0.0
    tokens: int = 0
    prefilled: list[EngineSequence] = field(default_factory=list)
    decoded: int = 0
    finished: list[EngineSequence] = field(default_factory=list)
    preempted: list[EngineSequence] = field(default_factory=list)


@dataclass(slots=True)
class EngineCounters:
    """Totals since the start, in tokens where nothing else is said. ``computed`` are those that steps took in."""

    steps: int = 0
    busy_s: float = 0.0
    prompt: int = 0
    generated: int = field(default=0, init=False)
    prefix_queries: int = 0
    prefix_hits: int = 0
    recomputed: int = 0
    computed: int = 0
    preemptions: int = field(default=0, init=False)
    finished: int = 0
    aborted: int = 0


@dataclass(slots=True, frozen=True)
class EngineSignals:
    """What a gateway can read from the engine's metrics page at one moment."""

    running: int
    waiting: int
    kv_use: float
    preemptions: int
    generated: int
