"""One mode and one policy on all gateways that share a pool (SPEC §11).

Whoever changes something puts it in force here first, so that what is invalid is refused before anybody hears of it,
and then hands it to the ledgers with the next version. Every reply of a ledger names the version in force; who knows an
older one reads the document and puts it in force by the same judgement. The document holds mode and policy. Backends,
tenants and rules are each gateway's own file.

A gateway that starts takes what is in force, unless its own file has another policy than the one that was started from:
then the new file is meant, and it goes to the others. The last one wins; nothing is merged.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import structlog

from tidegate.config import NORMAL, ConfigError, Settings, document, replace_policy
from tidegate.control.live import Live
from tidegate.core import PolicyError, TidegateError
from tidegate.runtime.replica import PoolLink
from tidegate.runtime.replica_pools import Replica
from tidegate.stores.ledger_protocol import LedgerConflict, PoolConfig, Reply

AGAIN_S = 0.1
AGAIN_LONGEST_S = 2.0
PATIENCE_S = 2.0

log = structlog.get_logger("tidegate.cluster")


class Shared(msgspec.Struct, frozen=True):
    """What the ledgers hand through.

    Attributes:
        base: digest of the file's policy and pools that this started from.
        mode: name of the mode in force.
        policy: the whole policy, as ``GET /admin/policy`` gives it.
        by: who changed it, and on which gateway.
        action: what was done, as the audit list calls it.
    """

    base: str
    mode: str
    policy: dict[str, Any]
    by: str
    action: str


class Sharing:
    """Spreads what ``live`` has in force, and follows what others have."""

    def __init__(self, replica: Replica, live: Live) -> None:
        self._replica = replica
        self._live = live
        self._base = _base(live.settings)
        self._version = 0
        self._document = ""
        self._following = False
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._joined = False
        live.changed = self._changed
        replica.answered = self._answered

    async def start(self) -> None:
        """Begin to share; a store that does not answer yet is tried again for as long as it takes."""
        self._replica.start()
        self._run("join", self._join)

    async def stop(self) -> None:
        """Leave the pools."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._replica.stop()

    # What others have.

    def _answered(self, link: PoolLink, reply: Reply) -> None:
        if self._joined and reply.version > self._version:
            self._run("follow", lambda: self._follow(link))

    async def _join(self) -> None:
        """Take what is in force, or bring what this gateway has."""
        found: PoolConfig | None = None
        for link in self._replica.links.values():
            config = await asyncio.wait_for(link.ledger.configuration(), PATIENCE_S)
            if config is not None and (found is None or config.version > found.version):
                found = config
        shared = None if found is None else _read(found.document)
        self._joined = True
        if found is None or shared is None:
            self._publish("start", "start")
        elif shared.base != self._base:
            self._version = found.version
            if shared.mode != self._live.mode and shared.mode in self._live.settings.mode_names:
                self._obey(Shared(shared.base, shared.mode, _policy(self._live.settings), shared.by, "mode"))
            self._publish("start", "start")
        else:
            self._take(found, shared)
            await self._configure()  # pools that have none yet

    async def _follow(self, link: PoolLink) -> None:
        config = await asyncio.wait_for(link.ledger.configuration(), PATIENCE_S)
        if config is None or config.version <= self._version:
            return
        shared = _read(config.document)
        if shared is not None:
            self._take(config, shared)

    def _take(self, config: PoolConfig, shared: Shared) -> None:
        if self._obey(shared):
            self._base = shared.base
        self._version, self._document = config.version, config.document

    def _obey(self, shared: Shared) -> bool:
        """Put in force what another gateway has; what is not valid here goes to the log, and nothing changes."""
        live, self._following = self._live, True
        try:
            after = replace_policy(live.settings, shared.policy)
            if shared.mode not in after.mode_names:
                raise ConfigError([])
            live.change(after, who=shared.by, action=shared.action)
            if shared.mode != live.mode:
                live.switch(shared.mode, who=shared.by)
        except (ConfigError, PolicyError) as error:
            log.error("cluster.change_refused", by=shared.by, mode=shared.mode, why=str(error) or "no such mode here")
            return False
        finally:
            self._following = False
        return True

    # What changed here.

    def _changed(self, who: str, action: str) -> None:
        """Spread a change that is in force here. Called by ``Live``."""
        self._replica.obey(self._live.settings.core_policy(self._live.mode))
        if self._following or not self._joined:
            return
        if action == "reload":
            self._base = _base(self._live.settings)
        self._publish(f"{who} at {self._replica.terms.name}", action)

    def _publish(self, by: str, action: str) -> None:
        live = self._live
        shared = Shared(self._base, live.mode, _policy(live.settings), by, action)
        self._version += 1
        self._document = msgspec.json.encode(shared).decode()
        self._run("configure", self._configure)

    async def _configure(self) -> None:
        """Hand what is in force to the ledgers; if somebody was faster, with a version above his."""
        version = self._version
        for spec in self._replica.policy.pools:
            link = self._replica.links[spec.name]
            while True:
                config = self._replica.config(
                    spec, version=self._version, mode=self._live.mode, document=self._document
                )
                try:
                    await asyncio.wait_for(link.ledger.configure(config), PATIENCE_S)
                    break
                except LedgerConflict as conflict:
                    self._version = max(self._version, conflict.version) + 1
        if self._version != version:
            await self._configure()  # all pools have one version

    def _run(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do something that needs the store, again and again until it is done; of each kind only the latest."""
        running = self._tasks.get(name)
        if running is not None and not running.done():
            if name != "configure":
                return
            running.cancel()
        self._tasks[name] = asyncio.get_running_loop().create_task(self._until_done(name, work))

    async def _until_done(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        pause_s = AGAIN_S
        while True:
            try:
                return await work()
            except (TidegateError, TimeoutError) as error:
                log.warning("cluster.waits", work=name, why=str(error) or "no answer")
            await asyncio.sleep(pause_s)
            pause_s = min(AGAIN_LONGEST_S, 2 * pause_s)


def _policy(settings: Settings) -> dict[str, Any]:
    return document(settings.policy)


def _base(settings: Settings) -> str:
    """Return a digest of the policy that a file wants, and of what it runs on."""
    pools = [(spec.name, [(each.name, str(each.seats)) for each in spec.backends]) for spec in _specs(settings)]
    return hashlib.sha256(msgspec.json.encode([_policy(settings), pools])).hexdigest()[:16]


def _specs(settings: Settings) -> tuple[Any, ...]:
    return settings.core_policy(NORMAL).pools


def _read(text: str) -> Shared | None:
    try:
        return msgspec.json.decode(text, type=Shared)
    except msgspec.MsgspecError:
        return None
