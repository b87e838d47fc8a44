"""One mode and one policy on all gateways that share a pool (SPEC §11).

Whoever changes something puts it in force here first, so that what is invalid is refused before anybody hears of it,
and then hands it to the ledgers with the next version. Every reply of a ledger names the version in force; who knows an
older one reads the document and puts it in force by the same judgement. The document holds mode and policy. Backends,
tenants and rules are each gateway's own file.

A gateway that starts takes what is in force, unless its own file has another policy than the one that was started from:
then the new file is meant, and it goes to the others. The last one wins, each change as a whole; but who changed the
policy takes back no mode, who changed the mode no policy, and who changed neither (tenants, backends) none of both.
What is changed while the store is away, or was never reached, goes to the others when it is there.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import msgspec
import structlog

from tidegate.config import NORMAL, ConfigError, Settings, document, replace_policy
from tidegate.control.live import Live
from tidegate.core import PolicyError, PoolSpec, TidegateError
from tidegate.runtime.replica import PoolLink
from tidegate.runtime.replica_pools import Replica
from tidegate.stores.ledger_protocol import LedgerConflict, PoolConfig, Reply

T = TypeVar("T")

MODE, POLICY = "mode", "policy"
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
        self._seen = 0  # the newest version that is known to be in force at a ledger
        self._document = ""
        self._known: dict[str, int] = {}  # the version that was read of each pool, or handed to it
        self._following = False
        self._meant: set[str] = set()  # of mode and policy, what was changed here and no ledger was handed yet
        self._told = (live.mode, _policy(live.settings))  # as they were last shared
        self._last = ("start", "start")  # who changed mode or policy last, and how
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
        if self._joined and reply.version > self._known.get(link.client.pool, 0):
            self._run(f"follow {link.client.pool}", lambda: self._follow(link))

    async def _join(self) -> None:
        """Take what is in force, or bring what this gateway has. One pool that answers is enough to know it."""
        asked = (asyncio.wait_for(link.ledger.configuration(), PATIENCE_S) for link in self._replica.links.values())
        configs = await _all(asked, enough=1)
        found = max((config for config in configs if config is not None), key=lambda each: each.version, default=None)
        shared = None if found is None else _read(found.document)
        self._joined = True
        if found is None or shared is None:
            self._publish()
            return
        if shared.base != self._base:
            self._meant.add(POLICY)
        if self._meant:
            self._version = self._seen = found.version
            self._merge(shared)
            self._publish()
        else:
            self._take(found, shared)
            self._run("configure", self._configure)  # pools that have none yet

    async def _follow(self, link: PoolLink) -> None:
        """Read what is in force in one pool: its ledger is shown by that, and given it if it is ever lost."""
        config = await asyncio.wait_for(link.ledger.configuration(), PATIENCE_S)
        if config is None:
            return
        self._known[link.client.pool] = config.version
        if config.version <= self._seen:
            return
        shared = _read(config.document)
        if shared is not None:
            self._take(config, shared)

    def _take(self, config: PoolConfig, shared: Shared) -> None:
        self._merge(shared)
        self._seen = config.version
        if self._meant:  # and handed over with the next try
            self._version, self._document = max(self._version, config.version), self._said()
        else:
            self._version, self._document = config.version, config.document

    def _merge(self, shared: Shared) -> bool:
        """Put in force what others have and was not changed here; say whether it can be."""
        own, others = self._own(), shared
        if POLICY in self._meant:
            others = msgspec.structs.replace(others, base=own.base, policy=own.policy)
        if MODE in self._meant:
            others = msgspec.structs.replace(others, mode=own.mode)
        if not self._obey(others):
            return False
        self._base = others.base
        if not self._meant:
            self._last = (shared.by, shared.action)
        return True

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
            self._told = (live.mode, _policy(live.settings))
        return True

    # What changed here.

    def _changed(self, who: str, action: str) -> None:
        """Spread a change that is in force here. Called by ``Live``."""
        live = self._live
        self._replica.obey(live.settings.core_policy(live.mode))
        if self._following:
            return
        mode, policy = self._told
        self._told = (live.mode, _policy(live.settings))
        meant = {
            MODE: action == "mode" or live.mode != mode,
            POLICY: action == "reload" or self._told[1] != policy,
        }
        self._meant |= {part for part, changed in meant.items() if changed}
        if any(meant.values()):
            self._last = (f"{who} at {self._replica.terms.name}", action)
        if action == "reload":
            self._base = _base(live.settings)
        if self._joined:
            self._publish()

    def _publish(self) -> None:
        self._version += 1
        self._document = self._said()
        self._run("configure", self._configure)

    def _own(self) -> Shared:
        by, action = self._last
        return Shared(self._base, self._live.mode, _policy(self._live.settings), by, action)

    def _said(self) -> str:
        return msgspec.json.encode(self._own()).decode()

    async def _configure(self) -> None:
        """Hand what is in force to the ledgers; if somebody was faster, with what he changed, and a version above his.

        All at once: a pool may lie on a server that does not answer, and the others are not to wait for it.
        """
        version = self._version
        pools = self._replica.policy.pools
        await _all((self._hand_over(spec) for spec in pools), enough=len(pools))
        if self._version != version:
            await self._configure()  # all pools have one version

    async def _hand_over(self, spec: PoolSpec) -> None:
        link = self._replica.links[spec.name]
        while True:
            config = self._replica.config(spec, version=self._version, mode=self._live.mode, document=self._document)
            try:
                await asyncio.wait_for(link.ledger.configure(config), PATIENCE_S)
            except LedgerConflict as conflict:
                found = await asyncio.wait_for(link.ledger.configuration(), PATIENCE_S)
                shared = None if found is None else _read(found.document)
                if found is not None and shared is not None and not self._merge(shared) and not self._meant:
                    self._version = self._seen = found.version  # not ours to take back
                    self._document = found.document
                    return
                self._version = max(self._version, conflict.version) + 1
                self._document = self._said()
            else:
                self._meant.clear()
                self._seen = max(self._seen, config.version)
                self._known[spec.name] = config.version
                return

    def _run(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do something that needs the store, again and again until it is done; of each kind only the latest."""
        running = self._tasks.get(name)
        if running is not None and not running.done():
            if name != "configure":
                return
            running.cancel()
        self._tasks[name] = asyncio.get_running_loop().create_task(self._until_done(name, work))

    async def _until_done(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        pause_s, told = AGAIN_S, ""
        while True:
            try:
                return await work()
            except (TidegateError, TimeoutError) as error:
                why = str(error) or "no answer"
                if why != told:
                    log.warning("cluster.waits", work=name, why=why)
                told = why
            except Exception:  # given up, it would never be done
                log.exception("cluster.fault", what=name)
            await asyncio.sleep(pause_s)
            pause_s = min(AGAIN_LONGEST_S, 2 * pause_s)


async def _all(calls: Iterable[Awaitable[T]], *, enough: int) -> list[T]:
    """Make calls at once, to their ends; return the results of those that succeeded.

    Raises:
        TidegateError, TimeoutError: fewer than ``enough`` did; the first failure.
    """
    ended = await asyncio.gather(*calls, return_exceptions=True)
    failed = [each for each in ended if isinstance(each, BaseException)]
    unforeseen = [each for each in failed if not isinstance(each, TidegateError | TimeoutError)]
    if unforeseen or (failed and len(ended) - len(failed) < enough):
        raise (unforeseen or failed)[0]
    return [each for each in ended if not isinstance(each, BaseException)]


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
