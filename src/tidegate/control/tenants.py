"""Tenants that are made, changed and taken away while the gateway runs, and their keys.

What a tenant of the file is stands in the file; here are only the others. Every change is written to the control store
together with its record before it is put in force, so that nobody is told of a key that a crash could take back. A
key is shown once, when it is made; what is stored is its digest.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from bisect import bisect_right
from collections.abc import Callable, Iterable
from datetime import datetime
from math import inf
from typing import Any

import msgspec
import structlog

from tidegate.config import (
    ConfigError,
    Problem,
    TenantSettings,
    key_digest,
    read_tenant,
    short_digest,
    tenant_document,
)
from tidegate.control.audit import KEPT_IN_STORE, Audit, Record, new_change
from tidegate.control.keeper import Keeper
from tidegate.control.live import Live, Ready
from tidegate.stores import Conflict, NotFound, StoredKey, StoredTenant, StoreError

KEY_BYTES = 32
"""256 bits: guessing is hopeless, so the stored digest needs neither salt nor stretching."""

MOST_KEYS = 20
AT_ONCE = 64
"""Tenants shown in one turn of the loop: about a millisecond."""

log = structlog.get_logger("tidegate.control")


def new_key() -> str:
    """Make a key."""
    return "tg-" + secrets.token_urlsafe(KEY_BYTES)


class Tenants:
    """The tenants that no file holds."""

    def __init__(self, live: Live, audit: Audit, keeper: Keeper, utc_now: Callable[[], datetime]) -> None:
        self._live = live
        self._audit = audit
        self._keeper = keeper
        self._utc_now = utc_now
        self._stored: dict[str, StoredTenant] = {}
        self._ends: dict[str, float] = {}  # when the next key of a tenant ends, of those that have one
        self._named: tuple[object, list[str], dict[str, TenantSettings]] = (None, [], {})
        self._followed = 0  # the newest change of the store whose tenants are known
        self._lock = asyncio.Lock()

    async def load(self) -> None:
        """Read the tenants from the store and put them in force.

        Raises:
            StoreError: the store does not answer.
            ConfigError: they do not fit the settings.
        """
        async with self._lock:
            await self._adopt(self._merged(await self._keeper.ask(lambda store: store.tenants())))

    async def follow(self) -> None:
        """Take over what other gateways on the same store have changed since the last look."""
        if not self._keeper.durable:
            return
        async with self._lock:
            with contextlib.suppress(StoreError):  # of a store that is away nothing new is known
                newest = await self._keeper.ask(lambda store: store.changes(before=None, limit=1))
                if newest and newest[0].id != self._followed:
                    found = await self._keeper.ask(lambda store: store.tenants())
                    self._followed = newest[0].id
                    await self._put_in_force(self._merged(found))

    async def expire(self) -> None:
        """Take keys out of force whose time is over."""
        if min(self._ends.values(), default=inf) <= self._now():
            async with self._lock:
                await self._put_in_force(self._stored)

    async def page(self, after: str, limit: int) -> list[dict[str, Any]]:
        """Return a page of all tenants as they are shown, those of the file too: by name, those behind ``after``.

        The loop turns after ``AT_ONCE`` of them: a thousand take 15 ms.
        """
        names, rows = self._by_name()
        first, found = bisect_right(names, after), list[dict[str, Any]]()
        for name in names[first : first + limit]:
            found.append(_row(rows[name], self._stored.get(name) if name in self._live.managed else None))
            if len(found) % AT_ONCE == 0:
                await asyncio.sleep(0)
        return found

    def _by_name(self) -> tuple[list[str], dict[str, TenantSettings]]:
        """Return the tenants in force, and their names in order; remembered, since thousands take milliseconds."""
        tenants = self._live.settings.tenants
        if self._named[0] is not tenants:
            rows = {row.name: row for row in tenants}
            self._named = (tenants, sorted(rows), rows)
        return self._named[1:]

    def row(self, name: str) -> dict[str, Any]:
        """Return one tenant as it is shown.

        Raises:
            NotFound: there is none.
        """
        if name in self._live.managed:
            return _row(self._live.managed[name], self._stored[name])
        for tenant in self._live.settings.tenants:
            if tenant.name == name:
                return _row(tenant, None)
        raise NotFound(f"expected the name of a tenant, got {name[:128]!r}")

    # Changing. All raise ``ConfigError``, ``Conflict``, ``NotFound`` or ``StoreError``; then nothing has changed.

    async def create(self, name: object, value: dict[str, Any], *, who: str, undoes: int | None = None) -> str:
        """Make a tenant with one key, which is returned."""
        async with self._lock:
            key = new_key()
            keys = (StoredKey(key_digest(key), self._now()),)
            tenant = read_tenant(name, value, (keys[0].digest,), bands=self._live.settings.band_names)
            if any(row.name == tenant.name for row in self._live.settings.tenants):
                raise Conflict(f"expected a new name, there is a tenant {tenant.name!r}")
            await self._save(StoredTenant(tenant.name, _settings(tenant), keys), who, "tenant", undoes)
            return key

    async def restore(self, name: str, value: dict[str, Any], *, who: str, undoes: int) -> None:
        """Make a tenant anew that was taken away; its keys are gone for good."""
        async with self._lock:
            tenant = read_tenant(name, value, (), bands=self._live.settings.band_names)
            if any(row.name == name for row in self._live.settings.tenants):
                raise Conflict(f"expected a new name, there is a tenant {name!r}")
            await self._save(StoredTenant(name, _settings(tenant)), who, "undo", undoes)

    async def update(self, name: str, patch: dict[str, Any], *, who: str, undoes: int | None = None) -> None:
        """Lay a JSON merge patch over a tenant's settings."""
        async with self._lock:
            stored = self._mine(name)
            tenant = read_tenant(name, patch, (), bands=self._live.settings.band_names, over=stored.settings)
            changed = msgspec.structs.replace(stored, settings=_settings(tenant))
            if changed != stored:
                await self._save(changed, who, "tenant", undoes)

    async def drop(self, name: str, *, who: str, undoes: int | None = None) -> None:
        """Take a tenant away; its keys are nobody's from then on. What it has waiting and running goes on."""
        async with self._lock:
            stored = self._mine(name)
            rest = {other: row for other, row in self._stored.items() if other != name}
            ready = await self._ready(rest)
            record = self._record(ready, who, "tenant", undoes)
            change = new_change(record)
            record.id = await self._keeper.ask(
                lambda store: store.drop_tenant(name, stored.revision, change, keep=KEPT_IN_STORE)
            )
            await self._noted(rest, ready, record)

    async def add_key(self, name: str, *, who: str, replaces: str | None = None, grace_s: float = 0.0) -> str:
        """Give a tenant another key, which is returned; the one that it ``replaces`` ends ``grace_s`` seconds later."""
        async with self._lock:
            stored = self._mine(name)
            now = self._now()
            keys = _living(stored, now)
            if replaces is not None:
                if all(short_digest(key.digest) != replaces for key in keys):
                    raise NotFound(f"expected the id of a key of {name!r}, got {replaces[:80]!r}")
                keys = tuple(
                    msgspec.structs.replace(key, expires_at_utc=min(now + grace_s, key.expires_at_utc or now + grace_s))
                    if short_digest(key.digest) == replaces
                    else key
                    for key in keys
                )
            if len(keys) >= MOST_KEYS:
                raise Conflict(f"expected at most {MOST_KEYS} keys, {name!r} has {len(keys)}; revoke one")
            key = new_key()
            changed = msgspec.structs.replace(stored, keys=(*keys, StoredKey(key_digest(key), now)))
            await self._save(changed, who, "key", None)
            return key

    async def revoke(self, name: str, key_id: str, *, who: str, undoes: int | None = None) -> None:
        """Make a key nobody's, at once."""
        async with self._lock:
            stored = self._mine(name)
            living = _living(stored, self._now())
            left = tuple(key for key in living if short_digest(key.digest) != key_id)
            if len(left) == len(living):
                raise NotFound(f"expected the id of a key of {name!r}, got {key_id[:80]!r}")
            await self._save(msgspec.structs.replace(stored, keys=left), who, "key", undoes)

    # Helpers

    def _merged(self, found: Iterable[StoredTenant]) -> dict[str, StoredTenant]:
        """Return what the store has, by name; rows that have not changed stay the ones that are known."""
        known = ((tenant, self._stored.get(tenant.name, tenant)) for tenant in found)
        return {old.name: old if old == tenant else tenant for tenant, old in known}

    def _mine(self, name: str) -> StoredTenant:
        stored = self._stored.get(name)
        if stored is None:
            self.row(name)
            raise Conflict(f"tenant {name!r} stands in the settings file: change it there, then POST /admin/reload")
        return stored

    async def _save(self, changed: StoredTenant, who: str, action: str, undoes: int | None) -> None:
        after = {**self._stored, changed.name: msgspec.structs.replace(changed, revision=changed.revision + 1)}
        ready = await self._ready(after)
        record = self._record(ready, who, action, undoes)
        change = new_change(record)
        record.id = await self._keeper.ask(lambda store: store.save_tenant(changed, change, keep=KEPT_IN_STORE))
        await self._noted(after, ready, record)

    async def _ready(self, stored: dict[str, StoredTenant]) -> Ready:
        """Make ready the settings with these tenants; raises what would keep them from being put in force."""
        try:
            return await self._live.ready(self._managed(stored))
        except ConfigError as error:
            raise ConfigError([_named(problem) for problem in error.errors]) from None

    def _record(self, ready: Ready, who: str, action: str, undoes: int | None) -> Record:
        return self._audit.new(who, action if undoes is None else "undo", ready.changes, undoes=undoes)

    async def _noted(self, stored: dict[str, StoredTenant], ready: Ready, record: Record) -> None:
        self._audit.noted(record)
        await self._put_in_force(stored, ready)

    async def _put_in_force(self, stored: dict[str, StoredTenant], ready: Ready | None = None) -> None:
        """Put in force what the store has taken; a file that was read meanwhile may stand in the way."""
        try:
            await self._adopt(stored, ready)
        except ConfigError as error:
            log.error("control.tenants_wait", why=str(error), until="the next reload or start")

    async def _adopt(self, stored: dict[str, StoredTenant], ready: Ready | None = None) -> None:
        if ready is None:
            managed = self._managed(stored)
            ready = await self._live.ready(managed) if managed != self._live.managed else None
        if ready is not None:
            await self._live.adopt(ready)
        now, before = self._now(), self._stored
        changed = [name for name, row in stored.items() if row is not before.get(name)]
        ends = {name: _end_of(stored[name], now) for name in (*changed, *self._ends) if name in stored}
        self._stored, self._ends = stored, {name: end for name, end in ends.items() if end < inf}

    def _managed(self, stored: dict[str, StoredTenant]) -> dict[str, TenantSettings]:
        """Return stored tenants as settings; those that have not changed are not read again."""
        bands, known, before, now = self._live.settings.band_names, self._live.managed, self._stored, self._now()
        found = {}
        for name, row in stored.items():
            old, then = known.get(name), before.get(name)
            if old is None or then is None or then.settings is not row.settings:
                found[name] = read_tenant(name, row.settings, _digests(row, now), bands=bands)
            elif then is row and self._ends.get(name, inf) > now:
                found[name] = old
            else:
                keys = _digests(row, now)
                found[name] = old if old.keys == keys else old.model_copy(update={"keys": keys})
        return found

    def _now(self) -> float:
        return self._utc_now().timestamp()


def _living(stored: StoredTenant, now: float) -> tuple[StoredKey, ...]:
    return tuple(key for key in stored.keys if key.expires_at_utc is None or key.expires_at_utc > now)


def _digests(stored: StoredTenant, now: float) -> tuple[str, ...]:
    return tuple(key.digest for key in _living(stored, now))


def _end_of(stored: StoredTenant, now: float) -> float:
    """Return when the next key of a tenant ends, ``inf`` when none does."""
    return min((key.expires_at_utc for key in _living(stored, now) if key.expires_at_utc is not None), default=inf)


def _settings(tenant: TenantSettings) -> dict[str, Any]:
    shown = tenant_document(tenant)
    del shown["keys"]
    return shown


def _row(tenant: TenantSettings, stored: StoredTenant | None) -> dict[str, Any]:
    times = {} if stored is None else {key.digest: key for key in stored.keys}
    keys = []
    for digest in tenant.keys:
        key = times.get(digest)
        keys.append(
            {
                "id": short_digest(digest),
                "created_at_utc": None if key is None else key.created_at_utc,
                "expires_at_utc": None if key is None else key.expires_at_utc,
            }
        )
    source = "file" if stored is None else "control"
    return {"name": tenant.name, "source": source, **_settings(tenant), "keys": keys}


def _named(problem: Problem) -> Problem:
    """Leave the number of a tenant away, which says nothing to whoever sent one."""
    path = problem.path
    if path.startswith("tenants[") and "]" in path:
        path = path.partition("]")[2].removeprefix(".")
    return Problem(path, problem.expected, problem.came, problem.nearest, problem.mark)
