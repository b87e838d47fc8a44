"""Whether a backend takes requests: a state machine fed with what requests and probes saw. Pure (SPEC §5.4).

    UP ──enough failures, or a certain one──▶ DOWN ──back-off over, probe well──▶ TRIAL ──an answer──▶ UP
     ▲                                          ▲                                   │ failure
     └──────── quiet for trial_s ───────────────┼───────────────────────────────────┤
                                                └── longer back-off ────────────────┘

Invariants: only UP and TRIAL take requests, TRIAL one at a time; a probe alone never ends a back-off early; the
back-off doubles with each relapse, up to a limit, and starts anew after a time without failures. It is drawn between
half and all of its length, so that several gateways do not come back to one engine in the same moment. A probe costs
an engine nothing, so one that is down is asked at a steady pace, and is noticed when it has been started again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

NEVER = float("inf")


class Standing(StrEnum):
    """How a backend stands."""

    UP = "up"
    DOWN = "down"
    TRIAL = "trial"


@dataclass(slots=True, frozen=True)
class HealthRules:
    """Numbers of the state machine; times in seconds.

    Attributes:
        eject_after: consecutive failed requests that take a backend out.
        look_every_s: time between probes of one that is up.
        ask_every_s: time between probes of one that is down.
        back_off_s: first time out.
        most_back_off_s: longest time out.
        trial_s: a trial without a failure is passed after it; long answers that are not streamed show no sign of life.
        forgive_s: time up without a failure after which the next back-off is the first again.
    """

    eject_after: int = 3
    look_every_s: float = 5.0
    ask_every_s: float = 1.0
    back_off_s: float = 1.0
    most_back_off_s: float = 30.0
    trial_s: float = 5.0
    forgive_s: float = 60.0


class BackendHealth:
    """The standing of one backend. Every method that takes ``now`` returns whether the standing changed.

    Args:
        rules: its numbers.
        chance: gives numbers from 0 to below 1, for the jitter.

    Attributes:
        standing: how it stands.
        why: what brought it down last.
        next_look_at: when it wants to be probed; a probe under way is the caller's to know.
    """

    __slots__ = (
        "_chance",
        "_failures",
        "_good_at",
        "_out_until",
        "_relapses",
        "_rules",
        "_trial_ends_at",
        "_up_since",
        "next_look_at",
        "standing",
        "why",
    )

    def __init__(self, rules: HealthRules, chance: Callable[[], float]) -> None:
        self._rules = rules
        self._chance = chance
        self.standing = Standing.UP
        self.why = ""
        self.next_look_at = 0.0
        self._failures = 0
        self._relapses = 0
        self._good_at = -NEVER
        self._up_since = 0.0
        self._out_until = 0.0
        self._trial_ends_at = NEVER

    @property
    def takes_requests(self) -> bool:
        """Whether work may be sent there."""
        return self.standing is not Standing.DOWN

    @property
    def wakes_at(self) -> float:
        """When to look at it: a probe is due, or a trial is over."""
        return min(self.next_look_at, self._trial_ends_at)

    def answered(self, now: float) -> bool:
        """A request got content, or a whole answer that is not the backend's failure."""
        self._failures = 0
        self._good_at = now
        return self.standing is Standing.TRIAL and self._rise(now)

    def failed(self, now: float, why: str, *, spare: bool) -> bool:
        """A request failed on the backend's side.

        Args:
            now: seconds.
            why: for the log.
            spare: another backend can take the work. Without one a backend that answers at all, even badly, is kept.
        """
        self._failures += 1
        if self.standing is Standing.TRIAL or (spare and self._failures >= self._rules.eject_after):
            return self._fall(now, why)
        self.next_look_at = min(self.next_look_at, now)
        return False

    def unreachable(self, now: float, why: str) -> bool:
        """No connection could be made: certain without a second opinion."""
        return self._fall(now, why)

    def doubt(self, now: float) -> None:
        """Ask to be probed soon."""
        if self.standing is not Standing.DOWN:
            self.next_look_at = min(self.next_look_at, now)

    def probed(self, now: float, *, began: float, problem: str | None) -> bool:
        """A probe ended.

        Args:
            now: seconds.
            began: when it was sent. One that fails while a request that began to answer since proves the contrary
                (a busy engine is slow to say that it is well) is not believed.
            problem: what was wrong, ``None`` if nothing.
        """
        if self.standing is not Standing.DOWN:
            self.next_look_at = now + self._rules.look_every_s
            return problem is not None and self._good_at < began and self._fall(now, problem)
        if problem is not None or now < self._out_until:
            self.next_look_at = max(self._out_until, now + self._drawn(self._rules.ask_every_s))
            return False
        self.next_look_at = now + self._rules.look_every_s
        self.standing = Standing.TRIAL
        self._trial_ends_at = now + self._rules.trial_s
        return True

    def tick(self, now: float) -> bool:
        """Let time pass: a trial that nothing spoke against is passed."""
        return self.standing is Standing.TRIAL and now >= self._trial_ends_at and self._rise(now)

    def _rise(self, now: float) -> bool:
        self.standing = Standing.UP
        self._up_since = now
        self._failures = 0
        self._trial_ends_at = NEVER
        return True

    def _fall(self, now: float, why: str) -> bool:
        rules = self._rules
        if self.standing is Standing.DOWN:  # a straggler of the same breakdown
            return False
        if self.standing is Standing.UP and now - self._up_since >= rules.forgive_s:
            self._relapses = 0
        self.why = why
        longest = min(rules.back_off_s * 2.0**self._relapses, rules.most_back_off_s)
        self._relapses = min(self._relapses + 1, 32)
        self._out_until = self.next_look_at = now + self._drawn(longest)
        self._trial_ends_at = NEVER
        self.standing = Standing.DOWN
        return True

    def _drawn(self, longest_s: float) -> float:
        return longest_s * (0.5 + 0.5 * self._chance())
