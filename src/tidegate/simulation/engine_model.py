"""One replica of a continuous-batching engine in virtual time: batching rules over the step cost of a profile.

Rules of a step: every running sequence first, in order (one decode token, or its next prefill chunk), then waiting
ones while the token budget, the sequence limit and 1 % of free blocks allow. A full pool preempts the last arrived
running sequence (or, by class, the newest of the lowest class) by recompute: its blocks are freed and, when it is
admitted again, prompt and generated tokens are prefilled again.

Decoding sequences are not touched in a step in which nothing happens to them: a sequence that joined after step j
has ``step - j`` tokens more, so that its end and its next block are known on joining. A step costs the same with one
sequence or with a thousand. (Walking all running sequences would cost some 20 us a step for 256.)

Two simplifications against a real engine: blocks for the whole prompt are taken on admission, not chunk by chunk; and
since chunks are cut only by the budget, at most one sequence is in the middle of its prefill.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable

from tidegate.simulation.kv import BLOCK, KvPool, blocks_for
from tidegate.simulation.profiles import DEFAULT_PROFILE, Profile, profile_named
from tidegate.simulation.sequences import (
    EngineCounters,
    EngineSequence,
    EngineSignals,
    Stage,
    StepResult,
    WaitingOrder,
    Work,
)


class EngineModel:
    """One replica. Virtual time: the caller decides when ``duration_s`` of a step has passed."""

    def __init__(
        self,
        profile: Profile | str = DEFAULT_PROFILE,
        *,
        kv_tokens: int | None = None,
        max_sequences: int | None = None,
        token_budget: int = 2048,
        order: WaitingOrder = WaitingOrder.FCFS,
        noise: float = 0.0,
        seed: int = 0,
    ) -> None:
        """Build an idle engine.

        Args:
            profile: cost profile or its name.
            kv_tokens: size of the KV pool; ``None``: that of the profile.
            max_sequences: most running sequences; ``None``: the profile's.
            token_budget: most tokens computed in a step.
            order: order of the waiting list, and whose sequence a full pool preempts.
            noise: standard deviation of a step's time as a part of it (0.05 to 0.15 is realistic).
            seed: of that noise.

        Raises:
            ValueError: unknown profile, no block in the pool, or more sequences than the budget can decode.
        """
        self.profile = profile_named(profile) if isinstance(profile, str) else profile
        self.kv = KvPool((self.profile.kv_tokens if kv_tokens is None else kv_tokens) // BLOCK)
        if self.kv.total < 1:
            raise ValueError(f"kv_tokens: expected at least {BLOCK}, got {kv_tokens}")
        self.max_sequences = self.profile.max_sequences if max_sequences is None else max_sequences
        if not 1 <= self.max_sequences <= token_budget:
            raise ValueError(
                f"max_sequences: expected 1 to the token budget ({token_budget}), got {self.max_sequences}"
            )
        self.token_budget = token_budget
        self.order = order
        self.counters = EngineCounters()
        self._noise = noise
        self._random = random.Random(seed)
        self._watermark = self.kv.total // 100
        self._sequences: dict[str, EngineSequence] = {}
        self._heap: list[tuple[int, int, EngineSequence]] = []
        self._waiting = 0
        self._partial: EngineSequence | None = None
        self._decoding: dict[str, EngineSequence] = {}
        self._kv_read = 0  # sum over the decoding ones of prompt + generated
        self._block_due = [0] * BLOCK  # decoding ones that need a block when steps % 16 is the index
        self._ends: dict[int, list[EngineSequence]] = {}  # by step count
        self._arrivals = 0

    # -- queries -------------------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Sequences that are admitted."""
        return len(self._decoding) + (self._partial is not None)

    @property
    def waiting(self) -> int:
        """Sequences that are not admitted, preempted ones included."""
        return self._waiting

    @property
    def idle(self) -> bool:
        """Whether a step would find nothing to do."""
        return not self._sequences

    def decoding(self) -> Iterable[EngineSequence]:
        """Sequences in the decoding stage; right after a step each of them has just emitted one token."""
        return self._decoding.values()

    def generated(self, sequence: EngineSequence) -> int:
        """Tokens that ``sequence`` has generated so far."""
        if sequence.stage is Stage.DECODING:
            return self.counters.steps - sequence.joined
        return sequence.generated

    def work_for(self, sequence: EngineSequence) -> Work:
        """What has been done for a sequence of this engine, in whatever stage; 0 for one that was never admitted."""
        generated = self.generated(sequence)
        if generated:
            first = sequence.prompt_tokens - sequence.cached_tokens
        else:
            first = max(0, sequence.computed - sequence.cached_tokens)
        again = sequence.recomputed
        return Work(sequence.cached_tokens, first + generated + again, again, sequence.preemptions)

    def find(self, sequence_id: str) -> EngineSequence | None:
        """The sequence with this id, while it is in the engine."""
        return self._sequences.get(sequence_id)

    def signals(self) -> EngineSignals:
        """The metrics page of this moment."""
        totals = self.counters
        return EngineSignals(self.running, self._waiting, self.kv.use, totals.preemptions, totals.generated)

    def fits(self, tokens: int) -> bool:
        """Whether a sequence of ``tokens`` in all could run alone in the pool."""
        return blocks_for(tokens) <= self.kv.total

    # -- events --------------------------------------------------------------------------------------------------

    def add(self, sequence: EngineSequence, now: float = 0.0) -> None:
        """Append a new sequence to the waiting list.

        Raises:
            ValueError: its id is in use, a length is below 1, or it does not fit the pool even alone.
        """
        if sequence.id in self._sequences:
            raise ValueError(f"sequence id: expected a new one, got {sequence.id!r} again")
        if sequence.prompt_tokens < 1 or sequence.output_tokens < 1 or sequence.unit_tokens % BLOCK:
            raise ValueError(f"sequence: expected lengths from 1 and units of {BLOCK} tokens, got {sequence}")
        if not self.fits(sequence.prompt_tokens + sequence.output_tokens):
            raise ValueError(f"sequence: expected at most {self.kv.total * BLOCK} tokens, got {sequence}")
        self._arrivals += 1
        sequence.arrived = now
        sequence.number = self._arrivals
        sequence.owner = sequence.owner or sequence.number
        self._sequences[sequence.id] = sequence
        self._wait(sequence)

    def abort(self, sequence_id: str) -> bool:
        """Forget a sequence at once; ``False`` if it is not in the engine (any more)."""
        sequence = self._sequences.pop(sequence_id, None)
        if sequence is None:
            return False
        if sequence.stage is Stage.WAITING:
            self._waiting -= 1
        else:
            self._leave(sequence)
        sequence.stage = Stage.DONE
        self.counters.aborted += 1
        return True

    def step(self) -> StepResult:
        """Run one step and return what it did; its effects are visible after ``duration_s``."""
        result = StepResult()
        self._grow(result)
        result.decoded = decoded = len(self._decoding)
        budget = self.token_budget - decoded
        pairs = 0.0
        if self._partial is not None:
            budget, pairs = self._prefill(self._partial, budget, result)
        while budget > 0 and self._partial is None and not result.preempted:
            sequence = self._admit(len(result.prefilled))
            if sequence is None:
                break
            budget, more = self._prefill(sequence, budget, result)
            pairs += more
        result.tokens = self.token_budget - budget
        if result.tokens:
            self._advance(result, pairs)
        return result

    # -- parts of a step -----------------------------------------------------------------------------------------

    def _grow(self, result: StepResult) -> None:
        """Take the blocks that this step's decode tokens need, preempting while the pool is short of them."""
        phase = self.counters.steps % BLOCK
        while self._block_due[phase] > self.kv.available:
            victim = self._victim()
            self._leave(victim)
            victim.preemptions += 1
            self.counters.preemptions += 1
            self._wait(victim)
            result.preempted.append(victim)
        self.kv.take(self._block_due[phase])

    def _victim(self) -> EngineSequence:
        running = list(self._decoding.values())
        if self._partial is not None:
            running.append(self._partial)
        if self.order is WaitingOrder.PRIORITY:
            return max(running, key=lambda sequence: (sequence.priority, sequence.number))
        return max(running, key=lambda sequence: sequence.number)

    def _admit(self, fresh: int) -> EngineSequence | None:
        """Admit the head of the waiting list, if the limits allow, with the blocks of its whole prefill.

        ``fresh`` counts those whose prefill ended in this step, which are not among the decoding ones yet.
        """
        heap = self._heap
        while heap and heap[0][2].stage is not Stage.WAITING:
            heapq.heappop(heap)
        running = self.running + fresh
        if not heap or running >= self.max_sequences or (running and self.kv.available <= self._watermark):
            return None
        sequence = heap[0][2]
        target = sequence.prompt_tokens + sequence.generated
        if not self._allocate(sequence, target, alone=not running):
            return None
        heapq.heappop(heap)
        self._waiting -= 1
        sequence.stage = Stage.PREFILL
        self._count_admission(sequence, target)
        self._partial = sequence
        return sequence

    def _allocate(self, sequence: EngineSequence, target: int, *, alone: bool) -> bool:
        kv, chain = self.kv, sequence.chain
        unit_blocks = sequence.unit_tokens // BLOCK
        full_units = min(len(chain), target // sequence.unit_tokens)
        # At least one token has to be computed, so that there is something to sample from.
        hits = kv.match(chain, min(full_units, (target - 1) // sequence.unit_tokens))
        run = kv.run_length(sequence.owner) if sequence.run_after == hits else 0
        hit_blocks = hits * unit_blocks + run
        taken = blocks_for(target) - hit_blocks
        lowers = taken + kv.unreferenced(chain[:hits]) + run
        if kv.available - lowers < (0 if alone else self._watermark):
            return False
        kv.hold(chain[:hits])
        if run:
            kv.take_run(sequence.owner)
        kv.take(taken)
        named = 0 if run else kv.name(chain[hits:full_units])
        sequence.held = hits + named
        sequence.target = target
        sequence.computed = hit_blocks * BLOCK
        sequence.run_after = -1
        return True

    def _count_admission(self, sequence: EngineSequence, target: int) -> None:
        if sequence.preemptions:
            again = target - sequence.computed - (sequence.generated > 0)  # the last token had not been read yet
            self.counters.recomputed += again
            sequence.recomputed += again
        else:
            sequence.cached_tokens = sequence.computed
            self.counters.prefix_queries += target
            self.counters.prefix_hits += sequence.computed

    def _prefill(self, sequence: EngineSequence, budget: int, result: StepResult) -> tuple[int, float]:
        """Compute the next chunk; return the budget left and the query-key pairs."""
        before = sequence.computed
        chunk = min(budget, sequence.target - before)
        sequence.computed = before + chunk
        if sequence.computed == sequence.target:
            self._partial = None
            result.prefilled.append(sequence)
        return budget - chunk, chunk * (before + chunk / 2)

    def _advance(self, result: StepResult, pairs: float) -> None:
        totals = self.counters
        sequences = result.decoded + len(result.prefilled)
        duration = self.profile.step_s(result.tokens, self._kv_read, pairs, sequences)
        if self._noise:
            duration *= max(0.5, self._random.gauss(1.0, self._noise))
        result.duration_s = duration
        totals.steps += 1
        totals.busy_s += duration
        totals.computed += result.tokens
        totals.generated += result.decoded + len(result.prefilled)
        self._kv_read += result.decoded
        for sequence in self._ends.pop(totals.steps, ()):
            if sequence.stage is Stage.DECODING and self.generated(sequence) == sequence.output_tokens:
                self._leave(sequence)
                self._finish(sequence, result)
        for sequence in result.prefilled:
            self._join(sequence, result)

    def _join(self, sequence: EngineSequence, result: StepResult) -> None:
        """Move a sequence whose prefill ended, and which has just emitted a token, to the decoding ones."""
        if not sequence.generated:
            self.counters.prompt += sequence.prompt_tokens
        steps = self.counters.steps
        sequence.stage = Stage.DECODING
        sequence.joined = steps - sequence.generated - 1
        self._decoding[sequence.id] = sequence
        self._kv_read += sequence.target + 1
        self._block_due[self._phase(sequence)] += 1
        end = sequence.joined + sequence.output_tokens
        if end == steps:
            self._leave(sequence)
            self._finish(sequence, result)
        else:
            self._ends.setdefault(end, []).append(sequence)

    def _finish(self, sequence: EngineSequence, result: StepResult) -> None:
        sequence.stage = Stage.DONE
        del self._sequences[sequence.id]
        self.counters.finished += 1
        result.finished.append(sequence)

    def _phase(self, sequence: EngineSequence) -> int:
        # A decode step writes the KV entry of token prompt + generated - 1 (counted from 0): a new block if that
        # is a multiple of 16, where generated is steps - joined.
        return (sequence.joined + 1 - sequence.prompt_tokens) % BLOCK

    def _wait(self, sequence: EngineSequence) -> None:
        sequence.stage = Stage.WAITING
        first = sequence.priority if self.order is WaitingOrder.PRIORITY else 0
        heapq.heappush(self._heap, (first, sequence.number, sequence))
        self._waiting += 1

    def _leave(self, sequence: EngineSequence) -> None:
        """Take a running sequence out and free its blocks; what was computed stays cached until overwritten."""
        if sequence.stage is Stage.DECODING:
            sequence.generated = self.generated(sequence)
            del self._decoding[sequence.id]
            self._kv_read -= sequence.prompt_tokens + sequence.generated
            self._block_due[self._phase(sequence)] -= 1
            stored = sequence.prompt_tokens + sequence.generated - 1
            taken = blocks_for(stored)
        else:
            self._partial = None
            stored, taken = sequence.computed, blocks_for(sequence.target)
        self._free(sequence, stored, taken)

    def _free(self, sequence: EngineSequence, stored: int, taken: int) -> None:
        kv, chain, held = self.kv, sequence.chain, sequence.held
        unit_blocks = sequence.unit_tokens // BLOCK
        full = min(len(chain), stored // sequence.unit_tokens)
        if full < held:
            kv.unname(chain[full:held], unit_blocks)
            taken -= (held - full) * unit_blocks
        elif full > held:
            full = held + kv.name(chain[held:full])
        shared = full * unit_blocks
        computed = stored // BLOCK - shared
        kv.drop_run(sequence.owner, computed=computed, empty=taken - shared - computed)
        kv.drop(chain[:full], unit_blocks)
        sequence.held = 0
        sequence.run_after = full
