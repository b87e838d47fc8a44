"""The ledger: who gets the next free seat of a pool that several gateways share (SPEC §11).

Each replica keeps its own queue and tells the ledger, again and again, how many seats it uses *now* and what its best
waiting tickets are. The ledger grants each free seat to a band and a replica by the rule of SPEC §4.1; the replica
binds its best ticket of that band when the grant arrives. Reports are absolute: one that is lost, late or repeated
does no harm, because the next one says everything again.

Times are whole milliseconds of the ledger's clock (``..._at_ms``) or ages (``..._ms``), so the clocks of replicas do
not matter. Shares, weights and rates are whole millionths (``..._ppm``): nothing is ever rounded. Everything here can
be packed by msgspec; reports and replies are packed as arrays, so fields may only be added at their end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from msgspec import Struct

from tidegate.core import Turn
from tidegate.stores.errors import Conflict, Unavailable

PPM: Final = 1_000_000
HEADS_MAX: Final = 8
"""How many waiting tickets a bid names; with one alone, messages that cross put work out of order."""


class LedgerUnavailable(Unavailable):
    """The ledger cannot be reached, does not answer in time, or has no configuration for the pool (yet)."""


class LedgerConflict(Conflict):
    """A configuration that is older than the one in force, or another one of the same version.

    Attributes:
        version: of the one in force.
    """

    def __init__(self, message: str, version: int) -> None:
        super().__init__(message)
        self.version = version


class BandConfig(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the ledger needs of a band; the highest comes first.

    Attributes:
        weight_ppm: base weight of the ageing score.
        aging_ppm: score gained per millisecond of waiting.
        floor_ppm: guaranteed part of the dispatches.
        promote_after_ms: age after which a ticket claims with the weights of the next higher band; 0: never.
        ceiling_ppm: part of the seats; while more is taken only floors of the band start.
        share: weight of the weighted discipline.
        reserve: lower bands start only while more seats than this are free; see ``Report.reserve`` for automatic ones.
    """

    name: str = ""
    weight_ppm: int = 0
    aging_ppm: int = 0
    floor_ppm: int = 0
    promote_after_ms: int = 0
    ceiling_ppm: int = PPM
    share: int = 1
    reserve: int = 0


class BackendConfig(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One backend of the pool.

    Attributes:
        seats: how many requests it runs at once; with ``auto`` only where the seat controller begins.
        auto: the seats are moved by the replica that runs the seat controller (``Reply.controller``).
        tokens_per_minute: its quota, 0 without one.
        requests_per_minute: its quota, 0 without one.
    """

    name: str
    seats: int
    auto: bool = False
    tokens_per_minute: int = 0
    requests_per_minute: int = 0


class TenantConfig(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tenant that differs from a weight of 1 without budgets; those are 0 without one."""

    name: str
    weight_ppm: int = PPM
    tokens_per_minute: int = 0
    requests_per_minute: int = 0


class PoolConfig(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a ledger obeys for one pool: one document, replaced as a whole, never patched.

    Attributes:
        version: grows with every change. A ledger refuses an older one.
        bands: highest first. Their number cannot change.
        backends: at least one. Who is taken out keeps its running requests, uncounted.
        tenants: those with a weight or a budget of their own.
        discipline: ``aging``, ``weighted`` or ``strict``.
        by_tokens: the weighted discipline counts estimated tokens, else requests.
        cap_ppm: most part of contended dispatches that may be overtakes, floors included.
        mode: name of the mode in force, handed through to replicas.
        document: the policy as replicas read it, and who changed it: handed through, never looked at.
        ttl_ms: a replica not heard for so long is forgotten and its seats come back (``lease_ttl``).
        heartbeat_ms: the longest time between two calls that replicas promise.
        recall_ms: a grant not confirmed for so long is taken back.
        rebuild_ms: how long a new pool, or one whose store was away, grants nothing, so that all report first.
        unconfirmed_max: most unconfirmed grants of one replica; 0: ``max(2, seats / 8)``.
    """

    version: int
    bands: tuple[BandConfig, ...]
    backends: tuple[BackendConfig, ...]
    tenants: tuple[TenantConfig, ...] = ()
    discipline: str = "aging"
    by_tokens: bool = True
    cap_ppm: int = 150_000
    mode: str = ""
    document: str = ""
    ttl_ms: int = 5000
    heartbeat_ms: int = 500
    recall_ms: int = 500
    rebuild_ms: int = 2000
    unconfirmed_max: int = 0


class Head(Struct, frozen=True, array_like=True):
    """One waiting ticket.

    Attributes:
        age_ms: how long it has waited.
        tenant: who pays for it.
        work: its estimated tokens.
        prefer: the backend it would rather run on, empty for any.
    """

    age_ms: int
    tenant: str = ""
    work: int = 0
    prefer: str = ""


class Bid(Struct, frozen=True, array_like=True):
    """What a replica has waiting in one band, of that which may run now.

    What may not run for a reason of its own (its tenant at a limit or out of budget, a dependency) is left out.

    Attributes:
        band: index, 0 is the highest.
        count: tickets, at least one.
        oldest: the one that has waited longest; an overtake is for it.
        heads: the first ones in the order in which they would be served, at most ``HEADS_MAX``, at least one.
        backends: where the band may run as this replica sees it (up, enough memory); empty: anywhere.
    """

    band: int
    count: int
    oldest: Head
    heads: tuple[Head, ...]
    backends: tuple[str, ...] = ()


class Charge(Struct, frozen=True, array_like=True):
    """The estimate of finished work was wrong by so much.

    Attributes:
        number: grows by charge within an epoch; a number is counted once, so charges may be sent again.
        band: the band whose turn it was.
        tenant: who pays.
        tokens: actual use less the estimate.
        backend: where it ran, for the quota.
    """

    number: int
    band: int
    tenant: str
    tokens: int
    backend: str = ""


class Report(Struct, frozen=True, array_like=True):
    """All that a replica has to say; each one replaces what the one before said.

    Attributes:
        epoch: of the last reply, 0 before the first.
        sequence: grows with every new report within an epoch, from 1; a repeated or older one changes nothing.
        ack: number of the last grant seen in this epoch, 0 for none.
        used: (backend, seats in use now). A grant counts from the moment it is taken.
        bids: one for each band that has something to run.
        charges: those not yet confirmed by a reply (``Reply.charged``).
        waiting: tickets waiting per band, those that may not run included; for the picture of the pool alone.
        rates_ppm: arrivals per second in each band, for the automatic reserve.
        seats: (backend, seats) as the seat controller wants them. Ignored unless this replica runs it.
        reserve: seats reserved for each band, as measured by whoever runs the seat controller; empty: as configured.
        top: of the seats in use, those for work of the highest band: solo shares are dealt by it first.
        file: digest of the backends in the replica's file; for the picture of the pool alone.
        short: per band, whether its measured reserve is less than it needs: then age does not pass it.
    """

    epoch: int = 0
    sequence: int = 1
    ack: int = 0
    used: tuple[tuple[str, int], ...] = ()
    bids: tuple[Bid, ...] = ()
    charges: tuple[Charge, ...] = ()
    waiting: tuple[int, ...] = ()
    rates_ppm: tuple[int, ...] = ()
    seats: tuple[tuple[str, int], ...] = ()
    reserve: tuple[int, ...] = ()
    top: int = 0
    file: str = ""
    short: tuple[bool, ...] = ()


class Grant(Struct, frozen=True, array_like=True):
    """The right to start one ticket of a band.

    Attributes:
        number: counts from 1 within an epoch. Pushed ones come in order; a list in a reply may have holes.
        band: of the ticket.
        backend: whose seat it is.
        kind: an ``overtake`` is for the ticket that has waited longest, others for the first in order.
        at_ms: when it was granted. A replica MUST ignore one that is older than 250 ms by the ledger's clock.
    """

    number: int
    band: int
    backend: str
    kind: Turn
    at_ms: int


class Reply(Struct, frozen=True, array_like=True):
    """What the ledger answers.

    Attributes:
        epoch: another one than in the report: acknowledgements and sequence begin anew, older pushes are void.
        grants: all grants that this replica has not confirmed, those pushed before included; holes are allowed.
        open_in_ms: until the pool grants anything; 0 when it is open.
        solo_share: seats that this replica may use alone when the ledger is gone. Not to be used if dealt while the
            pool was closed.
        now_ms: the ledger's clock.
        version, mode: of the configuration in force.
        replicas: how many are alive, this one included.
        charged: number of the last charge counted.
        controller: this replica runs the seat controller, until a reply says otherwise.
        counters: (band, tenant, counter) of the tenants that were bid, in thousandths of a token over weight. The
            lower goes first; at least the band's own.
        clocks: per band the counter that a newcomer starts with.
        seats: (backend, seats, of them held by all replicas, estimated tokens ever granted).
        reserve: seats reserved for each band.
        rates_ppm: arrivals per second in each band, over all replicas.
        debts: (tenant, ms until its budget allows more) of the tenants that were bid or charged and are in debt.
        closed: (backend, ms until its quota allows more) of those in debt.
    """

    epoch: int
    grants: tuple[Grant, ...]
    open_in_ms: int
    solo_share: int
    now_ms: int
    version: int
    mode: str
    replicas: int
    charged: int
    controller: bool
    counters: tuple[tuple[int, str, int], ...]
    clocks: tuple[int, ...]
    seats: tuple[tuple[str, int, int, int], ...]
    reserve: tuple[int, ...]
    rates_ppm: tuple[int, ...]
    debts: tuple[tuple[str, int], ...]
    closed: tuple[tuple[str, int], ...]


class ReplicaRow(Struct, frozen=True, array_like=True):
    """One replica in the picture of the pool; of ``file`` see ``Report``.

    Attributes:
        name: as the ledger knows it, see ``ledger_identity``.
        epoch: when it registered, by the ledger's clock, or a little later.
        held: used + unconfirmed, in the order of ``PoolView.backends``.
    """

    name: str
    epoch: int
    seen_ms_ago: int
    held: tuple[int, ...]
    unconfirmed: int
    waiting: tuple[int, ...]
    bid: tuple[int, ...]
    controller: bool
    file: str = ""


class PoolView(Struct, frozen=True, array_like=True):
    """The whole pool, from any replica (``/admin/state``).

    Attributes:
        gaps: per band the dispatches since its last one while it could run (its floor account).
        credits: per band what may be overtaken there, in ``unit`` for one overtake.
    """

    now_ms: int
    open_in_ms: int
    version: int
    mode: str
    backends: tuple[str, ...]
    seats: tuple[int, ...]
    held: tuple[int, ...]
    granted: int
    gaps: tuple[int, ...]
    credits: tuple[int, ...]
    unit: int
    rows: tuple[ReplicaRow, ...]


class Pushed(Struct, frozen=True, array_like=True):
    """A grant that came while this replica did not ask. It is in the next reply as well."""

    epoch: int
    grant: Grant


class Subscribed(Struct, frozen=True):
    """From now on grants are pushed: ask once now, for what came before. Said again after every loss."""


class Lost(Struct, frozen=True):
    """Nothing is pushed until ``Subscribed`` is said again."""


News: TypeAlias = Pushed | Subscribed | Lost


class Ledger(Protocol):
    """The ledger of one pool. Calls come from one event loop and may be cancelled; a cancelled one may have counted.

    All methods raise ``LedgerUnavailable`` when the ledger cannot be reached: it MUST be raised within two seconds,
    and callers set shorter limits of their own.
    """

    async def configuration(self) -> PoolConfig | None:
        """Return the configuration in force, ``None`` when the pool has none."""
        ...

    async def configure(self, config: PoolConfig) -> None:
        """Put a configuration in force, on all replicas. The same one again changes nothing.

        The handle remembers the newest one it has put in force or read, and gives it to a store that has lost its own.

        Raises:
            LedgerConflict: the one in force is newer, or another one of this version.
            StoreError: it is none that a ledger can obey.
        """
        ...

    async def turn(self, replica: str, report: Report) -> Reply:
        """Take a report, grant what is free, and answer. At most one call of a replica MUST be under way.

        The reply's ``version`` may be above that of the configuration known here: read ``configuration`` then.
        """
        ...

    async def leave(self, replica: str) -> None:
        """Forget a replica at once: its seats are free. An unknown one is ignored."""
        ...

    async def view(self) -> PoolView | None:
        """Return the whole pool for people to look at, ``None`` when it has no state. Not for the hot path."""
        ...

    def subscribe(self, replica: str, listener: Callable[[News], None]) -> Subscription:
        """Have grants to a replica pushed. The listener is called from the event loop and MUST return at once.

        It says ``Subscribed`` when pushing begins, ``Lost`` when the connection breaks; reconnecting is done here.
        """
        ...


class Subscription(Protocol):
    """What ``subscribe`` began."""

    async def close(self) -> None:
        """End it. A replica without subscription counts as gone for those who grant it seats, until it asks."""
        ...


class LedgerStore(Protocol):
    """A connection to a store with the ledgers of any number of pools."""

    def pool(self, name: str) -> Ledger:
        """Return the ledger of one pool, the same object every time."""
        ...

    async def close(self) -> None:
        """Close connections and subscriptions."""
        ...
