"""Who goes first in the engine, who is stopped for whom, and who has waited too long. Pure; ``now`` is an argument.

vLLM admits its waiting requests in the order of (``priority``, arrival), lower numbers first, and stops at the first
that does not fit; it computes the running before the waiting, in the order in which they were admitted. So four things
suffice: the number (``place``), whom to stop so that a waiting request fits (``make_room``), whose prompts pause for a
step (``hold_back``), and an exception now and then for one that has waited too long (``Patience``).

Invariants: a request is stopped only for one of a higher band; no stop is made that does not help; a request is
stopped at most ``max_preemptions`` times for others; stops keep to ``preemptions_per_s``; of every 1 / ``overtake_cap``
admissions one may go to the longest wait beyond ``promote_after_s``, whatever its band, and it is not stopped again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from tidegate.vllm_plugin.rules import Rules

_BAND = 1 << 32
"""Distance between bands in the number; more than any request has tokens."""

HIGHEST = 0


@dataclass(slots=True, eq=False)
class Member:
    """What is remembered of one request.

    Attributes:
        band: effective band: as told by the gateway, or the highest once promoted.
        since: when its present wait began, seconds.
        stops: how often it was stopped for another.
        promoted: it was admitted, or may be, for having waited too long.
    """

    band: int
    since: float
    stops: int = 0
    promoted: bool = False


@dataclass(slots=True)
class Waiter:
    """A waiting request, as it is looked at in one step.

    Attributes:
        member: its memory.
        blocks: KV blocks that it needs to be admitted, beyond those it would find in the cache in use.
    """

    member: Member
    blocks: int


@dataclass(slots=True)
class Runner:
    """A running request that could be stopped.

    Attributes:
        member: its memory.
        computed: tokens that are in the KV cache for it.
        blocks: KV blocks that come free with it.
        handle: whatever the caller knows it by.
    """

    member: Member
    computed: int
    blocks: int
    handle: object = None


@dataclass(slots=True)
class Share:
    """What one request could use of a step's tokens.

    Attributes:
        member: its memory.
        tokens: so many.
        prompt: some of its prompt is not computed yet.
        handle: whatever the caller knows it by.
    """

    member: Member
    tokens: int
    prompt: bool
    handle: object = None


def band_of(priority: int, rules: Rules) -> int:
    """Give the band that a ``priority`` means: the number itself, as the gateway tells it, within what there is."""
    return min(max(priority, 0), len(rules.bands) - 1)


def place(member: Member, computed: int) -> int:
    """Give the number by which vLLM orders: by band, and in a band by work already done.

    Of the running the one with the largest number is stopped when memory is short: the lowest band, the least
    computed. A stopped one keeps its number, so that it comes before others of its band.
    """
    return member.band * _BAND - min(computed, _BAND - 1)


def headroom(member: Member, rules: Rules, total: int) -> int:
    """Give the blocks out of ``total`` that must stay free when this request is admitted."""
    return ceil(rules.bands[member.band].kv_watermark * total)


def may_stop(member: Member, rules: Rules, *, by: int) -> bool:
    """Say whether a running request may be stopped for a waiting one of band ``by``."""
    mine = rules.bands[member.band]
    return mine.preemptible and member.band > by and not member.promoted and member.stops < rules.max_preemptions


def make_room(
    waiting: Iterable[Waiter],
    running: Iterable[Runner],
    rules: Rules,
    *,
    slots: int,
    blocks: int,
    total: int,
) -> list[list[Runner]]:
    """Choose whom to stop so that waiting requests can be admitted in this step.

    Args:
        waiting: in the order in which they will be admitted; it is read as far as somebody in it may have others
            stopped.
        running: all that could be stopped; only read when somebody has to be.
        rules: the rules.
        slots: more requests that may run.
        blocks: free KV blocks that this step's running requests do not need themselves.
        total: all KV blocks.

    Returns:
        A group for each request that is made room for, in order. Whoever of the waiting is before it gets room too,
        since it would not be admitted otherwise. Without any one of a group, and all groups after it, the request
        would not fit. When room cannot be made for one, none is made for those behind it.
    """
    groups: list[list[Runner]] = []
    candidates: list[Runner] | None = None
    for waiter in waiting:
        member = waiter.member
        if member.band > rules.last_pressing:
            break
        slots -= 1
        blocks -= waiter.blocks
        keep = headroom(member, rules, total)
        if (slots >= 0 and blocks >= keep) or member.promoted or not rules.bands[member.band].may_preempt:
            continue
        if candidates is None:
            candidates = sorted(running, key=lambda runner: (-runner.member.band, runner.computed))
        group = _victims(candidates, rules, by=member.band, slots=-slots, blocks=keep - blocks)
        if not group:
            break
        slots += len(group)
        blocks += sum(runner.blocks for runner in group)
        candidates = [runner for runner in candidates if runner not in group]
        groups.append(group)
    return groups


def _victims(candidates: Sequence[Runner], rules: Rules, *, by: int, slots: int, blocks: int) -> list[Runner]:
    """Take the first candidates that give so many slots and blocks together, less those that are not needed then."""
    taken: list[Runner] = []
    for runner in candidates:
        if slots <= 0 and blocks <= 0:
            break
        if may_stop(runner.member, rules, by=by):
            taken.append(runner)
            slots -= 1
            blocks -= runner.blocks
    if slots > 0 or blocks > 0:
        return []
    for runner in list(taken):
        if slots < 0 and blocks + runner.blocks <= 0:
            taken.remove(runner)
            slots += 1
            blocks += runner.blocks
    return taken


def hold_back(shares: Iterable[Share], rules: Rules, budget: int) -> list[Share]:
    """Choose whose prompts pause for a step, so that a prompt of a higher band is computed in it.

    Without it one long prompt of a low band would take all tokens of every step until its end, and whoever comes
    after it would wait for that. Nobody loses anything by a pause; not to pause twice in a row is up to the caller.

    Args:
        shares: in the order in which they are served.
        rules: the rules; only bands that may have others stopped have others pause.
        budget: most tokens of a step.

    Returns:
        The prompts of lower bands before the first such one that would not get all that it can use; those that were
        promoted are never among them.
    """
    before: list[Share] = []
    for share in shares:
        member = share.member
        if not share.prompt:
            budget -= share.tokens
        elif share.tokens > budget and rules.bands[member.band].may_preempt and not member.promoted:
            return [each for each in before if each.member.band > member.band and not each.member.promoted]
        else:
            budget = max(0, budget - share.tokens)
            before.append(share)
    return []


class Allowance:
    """How many may be stopped: so many a second, of which one second's worth (at least one) may be saved.

    A group larger than can be saved is allowed when all is saved, and paid for afterwards.
    """

    __slots__ = ("_at", "_burst", "_level", "_rate")

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._burst = self._level = max(1.0, rate) if rate > 0 else 0.0
        self._at: float | None = None

    @property
    def burst(self) -> float:
        """How many may be saved."""
        return self._burst

    def grant(self, now: float, count: int) -> bool:
        """Say whether ``count`` may be stopped now, and count them if so."""
        if self._at is not None and now > self._at:
            self._level = min(self._burst, self._level + (now - self._at) * self._rate)
        self._at = now if self._at is None else max(self._at, now)
        if not self._burst or (count > self._level and self._level < self._burst):
            return False
        self._level -= count
        return True


class Patience:
    """Lets one in some admissions go to whoever has waited too long."""

    __slots__ = ("_credit", "_earn", "_rules", "_unit")

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        part = Fraction(rules.overtake_cap).limit_denominator(10_000)
        self._earn, self._unit = part.numerator, part.denominator
        self._credit = self._unit

    def admitted(self) -> None:
        """Note that a waiting request was admitted; credit for more than one promotion is not saved."""
        self._credit = min(self._unit, self._credit + self._earn)

    def promote(self, waiting: Iterable[Member], now: float) -> Member | None:
        """Choose the longest wait beyond the limit and make it one of the highest band, if one is due.

        Nobody is chosen while an earlier choice still waits.
        """
        if self._credit < self._unit or not self._earn:
            return None
        longest: Member | None = None
        for member in waiting:
            if member.promoted:
                return None
            late = member.band > HIGHEST and now - member.since > self._rules.promote_after_s
            if late and (longest is None or member.since < longest.since):
                longest = member
        if longest is not None:
            longest.band, longest.promoted = HIGHEST, True
            self._credit -= self._unit
        return longest
