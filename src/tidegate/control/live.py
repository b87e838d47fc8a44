"""The settings in force and the mode over them: the only place that changes either while the gateway runs.

Every change goes the same way: make whole new settings, have them judged, put them in force in one step, record it. A
change that is refused anywhere on that way changes nothing. Modes are compiled here, at the edge (SPEC §6); what a
mode sheds, what is waiting included, the scheduler says itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from operator import is_
from typing import Protocol, TypeVar

import structlog

from tidegate.config import (
    NORMAL,
    ConfigError,
    Mark,
    ModelSettings,
    Problem,
    Settings,
    TenantSettings,
    differences,
    nearest,
    needs_restart,
    replace_tenants,
)
from tidegate.control.audit import Audit, Change, Record
from tidegate.core import PolicyError

TIMER = "timer"
MOST_REMEMBERED = 50

log = structlog.get_logger("tidegate.control")
T = TypeVar("T")


class Apply(Protocol):
    """Puts settings in force."""

    def __call__(self, settings: Settings, mode: str) -> None:
        """Put ``settings`` with ``mode`` over them in force, whole or not at all.

        MUST raise before anything has changed.

        Raises:
            PolicyError: the scheduler cannot take them while it runs.
            ConfigError: they cannot be used, such as a certificate that cannot be read.
        """
        ...


Prepare = Callable[[Settings, str], Callable[[], None]]
"""Makes settings with a mode over them ready, on any thread; what it returns puts them in force, in a moment."""


class Aside(Protocol):
    """Runs what takes long where it does not hold up the event loop."""

    async def __call__(self, call: Callable[[], T], /) -> T:
        """Return what ``call`` returns; raise what it raises."""
        ...


@dataclass(slots=True, frozen=True)
class Ready:
    """Settings that can be put in force at once, as long as ``before`` and ``mode`` are in force.

    Attributes:
        after: the settings, those of ``managed`` among their tenants.
        changes: what differs from ``before``.
        put: puts them in force.
    """

    before: Settings
    mode: str
    managed: dict[str, TenantSettings]
    after: Settings
    changes: list[Change]
    put: Callable[[], None]


@dataclass(slots=True, frozen=True)
class ModeState:
    """The mode in force.

    Attributes:
        mode: its name.
        by: who switched it on.
        since_utc: when.
        reverts_to: the mode that follows by itself, ``None``: it stays.
        reverts_in_s: seconds until then.
    """

    mode: str
    by: str
    since_utc: datetime
    reverts_to: str | None
    reverts_in_s: float | None


class Live:
    """Settings and mode in force.

    Args:
        settings: those that the gateway was started with.
        apply: puts others in force.
        audit: list of changes.
        prepare: makes ready what ``apply`` would put in force; ``None``: nothing needs to be.
        aside: where what takes long is done; by itself it is done here and now.
        utc_now: the wall clock.
        load: reads the file again; ``None``: there is none.

    Attributes:
        managed: the tenants that no file holds, by name; the settings in force have them beside those of the file.
        changed: hears who did what after it is in force and recorded.
    """

    def __init__(
        self,
        settings: Settings,
        apply: Apply,
        audit: Audit,
        *,
        utc_now: Callable[[], datetime],
        load: Callable[[], Settings] | None = None,
        prepare: Prepare | None = None,
        aside: Aside | None = None,
    ) -> None:
        self.settings = settings
        self.audit = audit
        self.mode = NORMAL
        self.changed: Callable[[str, str], None] = lambda _who, _action: None
        self.managed: dict[str, TenantSettings] = {}
        self._models_before: deque[tuple[Record, tuple[ModelSettings, ...]]] = deque(maxlen=MOST_REMEMBERED)
        self._apply = apply
        self._utc_now = utc_now
        self._load = load
        self._prepare: Prepare = prepare or (lambda after, mode: lambda: apply(after, mode))
        self._aside: Aside = aside or here
        self._reading = asyncio.Lock()
        self._signals: set[asyncio.Task[None]] = set()
        self._by = "start"
        self._since_utc = utc_now()
        self._timer: asyncio.TimerHandle | None = None
        self._reverts_to: str | None = None

    def state(self) -> ModeState:
        """Say which mode is in force."""
        left_s = None
        if self._timer is not None:
            left_s = max(0.0, self._timer.when() - asyncio.get_running_loop().time())
        return ModeState(self.mode, self._by, self._since_utc, self._reverts_to, left_s)

    def switch(self, mode: str, *, who: str, revert_after_s: float | None = None, undoes: int | None = None) -> Record:
        """Put a mode in force at once; returns the record.

        With ``revert_after_s`` it ends by itself. What follows is the mode before it; when that one was to end too,
        what was to follow that. Switching to the mode in force sets its end anew, or takes it away.

        Raises:
            ConfigError: there is no such mode; nothing has changed.
            PolicyError: the scheduler cannot take it.
        """
        names = self.settings.mode_names
        if mode not in names:
            expected = f"expected one of {', '.join(names)}"
            raise ConfigError(
                [Problem("mode", expected, repr(mode[:60]), nearest(mode[:60], [*names]), Mark("request"))]
            )
        before, follows = self.mode, self._reverts_to or self.mode
        if mode != before:
            self._apply(self.settings, mode)
            self._by, self._since_utc = who, self._utc_now()
        self.mode = mode
        self._stop_timer()
        changes: list[Change] = [("mode", before, mode)]
        if revert_after_s is not None and follows != mode:
            self._reverts_to = follows
            self._timer = asyncio.get_running_loop().call_later(revert_after_s, self._revert)
            changes.append(("revert_after_s", None, revert_after_s))
        record = self.audit.add(who, "mode" if undoes is None else "undo", changes, undoes=undoes)
        self.changed(who, record.action)
        return record

    def change(
        self,
        after: Settings,
        *,
        who: str,
        action: str,
        undoes: int | None = None,
        put: Callable[[], None] | None = None,
    ) -> Record | None:
        """Put other settings in force; the mode stays. Returns the record, ``None`` when nothing differs.

        ``put`` does so, where that has been prepared for the mode in force.

        Raises:
            ConfigError: what differs needs a restart, or the mode in force is not among them.
            PolicyError: the scheduler cannot take them.
        """
        self.judge(after, action=action)
        if after == self.settings:
            return None
        changes, models = differences(self.settings, after), self.settings.models
        if put is None:
            self._apply(after, self.mode)
        else:
            put()
        self.settings = after
        record = self.audit.add(who, action, changes, undoes=undoes)
        if after.models != models:
            self._models_before.append((record, models))
        self.changed(who, action)
        return record

    def models_before(self, record_id: int) -> tuple[ModelSettings, ...] | None:
        """Return the models, credentials included, that a recorded change replaced; ``None``: not known any more."""
        return next((models for record, models in self._models_before if record.id == record_id), None)

    async def ready(self, managed: dict[str, TenantSettings]) -> Ready:
        """Make ready the settings in force with other tenants beside those of the file.

        Raises:
            ConfigError: they do not fit.
        """
        before, mode, known = self.settings, self.mode, self.managed

        def work() -> Ready:
            after = _joined(_of_file(before, known), managed)
            return Ready(before, mode, managed, after, differences(before, after), self._prepare(after, mode))

        return await self._aside(work)

    async def adopt(self, ready: Ready) -> None:
        """Put other tenants in force beside those of the file. Whoever changes them has recorded it.

        Raises:
            ConfigError: they do not fit what has come in force meanwhile; nothing has changed.
            PolicyError: the scheduler cannot take them.
        """
        while ready.before is not self.settings or ready.mode != self.mode:
            ready = await self.ready(ready.managed)
        if ready.after != self.settings:
            ready.put()
        self.settings, self.managed = ready.after, ready.managed
        self.changed("", "tenants")

    @property
    def file_settings(self) -> Settings:
        """The settings in force without the tenants that no file holds."""
        return _of_file(self.settings, self.managed)

    def judge(self, after: Settings, *, action: str) -> None:
        """Look whether other settings could be put in force now.

        Raises:
            ConfigError: what differs needs a restart, or the mode in force is not among them.
        """
        problems = [
            Problem(path, "expected no change: this needs a restart", mark=Mark(action))
            for path in needs_restart(self.settings, after)
        ]
        if self.mode not in after.mode_names:
            problems.append(Problem("modes", f"expected {self.mode}, it is the mode in force", mark=Mark(action)))
        if problems:
            raise ConfigError(problems)

    async def reload(self, *, who: str) -> Record | None:
        """Read the file again and put it in force, whole or not at all. Returns the record, ``None`` when all is as it
        was.

        Changes made by the control API since the start are undone where the file says otherwise.

        Raises:
            ConfigError: the file cannot be used, or needs a restart; nothing has changed.
            PolicyError: the scheduler cannot take it.
        """
        load = self._load
        if load is None:
            raise ConfigError([Problem("", "expected a settings file to read again, there is none", mark=Mark(who))])
        async with self._reading:  # who asks later gets what the file says later
            file = await self._aside(load)
            while True:
                before, mode, managed = self.settings, self.mode, self.managed
                after, put = await self._aside(partial(self._read, file, before, mode, managed))
                if before is self.settings and mode == self.mode and managed is self.managed:
                    return self.change(after, who=who, action="reload", put=put)

    def _read(
        self, file: Settings, before: Settings, mode: str, managed: dict[str, TenantSettings]
    ) -> tuple[Settings, Callable[[], None] | None]:
        """Return what a file makes of the settings, and what puts it in force; on any thread."""
        after = _with_known_tenants(_joined(file, managed), before)
        return after, self._prepare(after, mode) if mode in after.mode_names else None

    def on_signal(self) -> asyncio.Task[None]:
        """Read the file again; what is wrong with it goes to the log."""
        task = asyncio.get_running_loop().create_task(self._signalled())
        self._signals.add(task)
        task.add_done_callback(self._signals.discard)
        return task

    async def _signalled(self) -> None:
        try:
            record = await self.reload(who="signal")
        except (ConfigError, PolicyError) as error:
            log.error("control.reload_refused", why=str(error))
        else:
            log.info("control.reloaded", changed=[row["what"] for row in record.changes] if record else [])

    def close(self) -> None:
        """Forget the timer."""
        self._stop_timer()

    def _revert(self) -> None:
        mode = self._reverts_to or NORMAL
        self._timer = self._reverts_to = None
        if mode not in self.settings.mode_names:  # a reload took it away
            mode = NORMAL
        try:
            self.switch(mode, who=TIMER)
        except (ConfigError, PolicyError) as error:
            log.error("control.revert_refused", mode=mode, why=str(error))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._reverts_to = None


def _joined(settings: Settings, managed: dict[str, TenantSettings]) -> Settings:
    """Return settings of a file with the tenants that no file holds."""
    twice = [tenant.name for tenant in settings.tenants if tenant.name in managed]
    if twice:
        expected = "expected a name of its own: a tenant made by the control API has it; delete one of the two"
        raise ConfigError([Problem(f"tenants.{name}", expected) for name in twice])
    return replace_tenants(settings, (*settings.tenants, *managed.values())) if managed else settings


def _of_file(settings: Settings, managed: dict[str, TenantSettings]) -> Settings:
    """Return settings without the tenants that no file holds."""
    if not managed:
        return settings
    own = tuple(tenant for tenant in settings.tenants if tenant.name not in managed)
    return settings.model_copy(update={"tenants": own})


def _with_known_tenants(after: Settings, before: Settings) -> Settings:
    """Put known tenants in the place of those that are equal, so that nothing has to compare them again."""
    known = {tenant.name: tenant for tenant in before.tenants}
    found = [(row, known.get(row.name, row)) for row in after.tenants]
    tenants = tuple(old if old == row else row for row, old in found)
    same = len(tenants) == len(before.tenants) and all(map(is_, tenants, before.tenants))
    return after.model_copy(update={"tenants": before.tenants if same else tenants})


async def here(call: Callable[[], T], /) -> T:
    """Run it here and now: ``Aside`` for whoever has no loop to spare."""
    return call()
