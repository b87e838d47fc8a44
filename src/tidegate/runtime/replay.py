"""Run a recorded event log through a fresh scheduler: the same events at the same times give the same actions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tidegate.core import (
    Action,
    Began,
    Declined,
    Drain,
    Elsewhere,
    Health,
    Paused,
    Policy,
    PolicyError,
    RateLimit,
    Reading,
    Scheduler,
    Seats,
    TidegateError,
    Waiter,
)
from tidegate.runtime.forms import ReleaseForm, RequeueForm, TicketForm, made


class _Kind(NamedTuple):
    method: Callable[..., list[Action]]
    arguments: Any  # type of the argument list


_KINDS = {
    "submit": _Kind(Scheduler.submit, tuple[TicketForm]),
    "release": _Kind(Scheduler.release, tuple[int, ReleaseForm]),
    "requeue": _Kind(Scheduler.release, tuple[int, RequeueForm]),
    "cancel": _Kind(Scheduler.cancel, tuple[str]),
    "observe.Health": _Kind(Scheduler.observe, tuple[Health]),
    "observe.Seats": _Kind(Scheduler.observe, tuple[Seats]),
    "observe.Reading": _Kind(Scheduler.observe, tuple[Reading]),
    "observe.RateLimit": _Kind(Scheduler.observe, tuple[RateLimit]),
    "observe.Paused": _Kind(Scheduler.observe, tuple[Paused]),
    "observe.Began": _Kind(Scheduler.observe, tuple[Began]),
    "observe.Declined": _Kind(Scheduler.observe, tuple[Declined]),
    "observe.Drain": _Kind(Scheduler.observe, tuple[Drain]),
    "observe.Elsewhere": _Kind(Scheduler.observe, tuple[Elsewhere]),
    "observe.Waiter": _Kind(Scheduler.observe, tuple[Waiter]),
    "set_policy": _Kind(Scheduler.set_policy, tuple[Policy]),
    "tick": _Kind(Scheduler.tick, tuple[()]),
}


def replay(path: Path, policy: Policy | None = None) -> list[tuple[float, Action]]:
    """Replay an event log.

    Args:
        path: the file that an ``EventLog`` wrote.
        policy: what the scheduler starts with; the recorded policy if absent. Under another policy it shows what that
            would have decided at first, but the releases stay those of the recorded leases.

    Returns:
        Every action with the ``now`` of the call that returned it, in order.

    Raises:
        TidegateError: a line that is not of an event log.
    """
    with path.open("rb") as lines:
        return list(_actions(lines, policy))


def _actions(lines: Iterator[bytes] | Any, policy: Policy | None) -> Iterator[tuple[float, Action]]:
    scheduler: Scheduler | None = None
    for number, line in enumerate(lines, 1):
        try:
            now, kind, raw = msgspec.json.decode(line, type=tuple[float, str, msgspec.Raw])
            if kind == "policy":
                (recorded,) = _decode(raw, tuple[Policy])
                scheduler = Scheduler(policy or recorded)
                continue
            method, arguments = _KINDS[kind].method, _decode(raw, _KINDS[kind].arguments)
        except (msgspec.DecodeError, KeyError) as fault:
            raise TidegateError(f"event log, line {number}: expected [now, kind, [arguments]], got {fault}") from fault
        if scheduler is None:
            raise TidegateError(f"event log, line {number}: expected a policy first, got {kind!r}")
        with contextlib.suppress(PolicyError):  # the scheduler refused it in the recorded run, too
            for action in method(scheduler, now, *map(made, arguments)):
                yield now, action


def _decode(raw: msgspec.Raw, kind: Any) -> Any:
    return msgspec.json.decode(raw, type=kind, dec_hook=_rebuild)


def _rebuild(kind: type, value: Any) -> Any:
    if kind is Fraction:
        return Fraction(value)
    raise NotImplementedError(f"no form for {kind.__name__}")
