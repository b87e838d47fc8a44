"""What a ledger knows of a pool: plain values, which can be packed and put away between two calls."""

from __future__ import annotations

from msgspec import Struct, field

from tidegate.core import Turn
from tidegate.stores.ledger_protocol import Bid, Grant, Head
from tidegate.stores.ledger_rules import BUCKET, DEPTH, DRAIN, Quota, Rules, other_bands


class Waiting(Struct, frozen=True, array_like=True):
    """One ticket of a bid: a ``Head`` with the time of its arrival instead of its age."""

    arrived_ms: int
    tenant: str
    work: int
    prefer: str


class LiveBid(Struct, array_like=True):
    """A bid, and what the grants since then have left of it."""

    count: int
    oldest: Waiting
    heads: list[Waiting]
    backends: tuple[str, ...]

    def advance(self, kind: Turn) -> None:
        """Take out the ticket that a grant of ``kind`` is for.

        What waits behind the heads is not known: the last head stands for it, and the oldest of the heads, which is
        younger than the oldest of all, for that. The next report says it exactly.
        """
        self.count -= 1
        gone = self.oldest if kind is Turn.OVERTAKE else self.heads[0]
        if len(self.heads) > 1 and gone in self.heads:
            self.heads.remove(gone)
        if gone == self.oldest:
            self.oldest = min(self.heads, key=lambda head: head.arrived_ms)


def live(bid: Bid, now: int) -> LiveBid:
    """Turn ages into times."""
    return LiveBid(bid.count, _since(bid.oldest, now), [_since(head, now) for head in bid.heads], bid.backends)


def _since(head: Head, now: int) -> Waiting:
    return Waiting(now - head.age_ms, head.tenant, head.work, head.prefer)


class Record(Struct):
    """One replica.

    Attributes:
        held: seats per backend, used or granted and unconfirmed.
        number: of the last grant.
        use: seats held on average over half a minute, in millionths.
        top: most seats held for the highest band, which fades over half a minute, in millionths.
        charged: number of the last charge counted.
        listed: its bids count; not once it has as many unconfirmed grants as are allowed, until its next report.
    """

    epoch: int
    seen: int
    sequence: int = 0
    number: int = 0
    ack: int = 0
    charged: int = 0
    use: int = 0
    listed: bool = False
    held: dict[str, int] = field(default_factory=dict)
    pending: list[Grant] = field(default_factory=list)
    bids: dict[int, LiveBid] = field(default_factory=dict)
    waiting: tuple[int, ...] = ()
    rates: tuple[int, ...] = ()
    top: int = 0
    file: str = ""


class Bucket(Struct, array_like=True):
    """Levels of a quota's two leaky buckets, in ``BUCKET`` units, and the time they were true."""

    tokens: int = 0
    requests: int = 0
    at: int = 0

    def drain(self, quota: Quota, now: int) -> None:
        """Let go what has drained since."""
        passed = now - self.at
        self.tokens = max(0, self.tokens - passed * quota.tokens * DRAIN)
        self.requests = max(0, self.requests - passed * quota.requests * DRAIN)
        self.at = now

    def charge(self, tokens: int, requests: int) -> None:
        """Pour in; what is given back leaves at least an empty bucket."""
        self.tokens = max(0, self.tokens + tokens * BUCKET)
        self.requests += requests * BUCKET

    def wait_ms(self, quota: Quota) -> int:
        """Return how long it takes until one more may start, 0 when it may."""
        return max(_wait(self.tokens, quota.tokens), _wait(self.requests, quota.requests))


def _wait(level: int, quota: int) -> int:
    over = level - quota * DEPTH
    return over // (quota * DRAIN) + 1 if quota and over >= 0 else 0


class State(Struct):
    """Everything that changes, of one pool. Bands and accounts as in ``core.between`` and ``core.shares``.

    Attributes:
        last: the latest time seen; ``ahead`` of the store's clock, by how much that was set back since.
        open: when the pool grants again.
        grace: until then nobody counts as late: the ledger itself was away.
        epoch: of the last registration.
        version, key: of the rules that the accounts below belong to.
        due, out, present: shares account.
        clocks: per band the counter a newcomer starts with.
        counters: per band and tenant.
        grants: ever made; ``tokens`` the estimated tokens of them, per backend.
        seats: per backend, as the seat controller has set them; ``reserve`` and ``short`` likewise, per band.
        controller: (replica, epoch) that runs the seat controller.
        quotas, budgets: what backends and tenants have used of theirs.
    """

    last: int
    open: int
    grace: int = 0
    epoch: int = 0
    version: int = -1
    key: str = ""
    gap: list[int] = field(default_factory=list)
    credit: list[int] = field(default_factory=list)
    due: list[int] = field(default_factory=list)
    out: list[bool] = field(default_factory=list)
    present: int = 0
    clocks: list[int] = field(default_factory=list)
    counters: list[dict[str, int]] = field(default_factory=list)
    grants: int = 0
    tokens: dict[str, int] = field(default_factory=dict)
    seats: dict[str, int] = field(default_factory=dict)
    reserve: tuple[int, ...] = ()
    short: tuple[bool, ...] = ()
    controller: tuple[str, int] = ("", 0)
    quotas: dict[str, Bucket] = field(default_factory=dict)
    budgets: dict[str, Bucket] = field(default_factory=dict)
    replicas: dict[str, Record] = field(default_factory=dict)
    ahead: int = 0


def new_state(rules: Rules, now: int) -> State:
    """Return an empty pool. It is closed, so that all replicas report before anything is granted."""
    bands = len(rules.bands)
    return State(
        last=now,
        open=now + rules.rebuild_ms,
        clocks=[0] * bands,
        counters=[{} for _ in range(bands)],
    )


def adapt(state: State, rules: Rules) -> None:
    """Make the state fit rules of another version. Floors are no closer than after a gate, credit is not kept."""
    if state.key != rules.key:
        fresh = not state.key
        old = [0] * len(rules.bands) if fresh else state.gap
        state.gap = [min(gap, band.join) if band.period else 0 for gap, band in zip(old, rules.bands, strict=True)]
        state.credit = [0] * len(rules.bands)
        state.due, state.out, state.present = [0] * len(rules.bands), [True] * len(rules.bands), 0
        state.key = rules.key
    state.version = rules.version
    auto = {name for name, moved in zip(rules.backends, rules.auto, strict=True) if moved}
    state.seats = {name: seats for name, seats in state.seats.items() if name in auto}
    state.quotas = {name: bucket for name, bucket in state.quotas.items() if name in rules.quotas}
    state.budgets = {name: bucket for name, bucket in state.budgets.items() if name in rules.budgets}
    most = unconfirmed_most(state, rules)
    for record in state.replicas.values():
        record.held = {name: held for name, held in record.held.items() if name in rules.backends}
        record.pending = [grant for grant in record.pending if grant.backend in rules.backends]
        record.listed = len(record.pending) < most


def seats_of(state: State, rules: Rules) -> dict[str, int]:
    """Return the seats in force, in the order of the configuration."""
    return {name: state.seats.get(name, seats) for name, seats in zip(rules.backends, rules.seats, strict=True)}


def unconfirmed_most(state: State, rules: Rules) -> int:
    """Return how many unconfirmed grants a replica may have."""
    return rules.unconfirmed_max or max(2, sum(seats_of(state, rules).values()) // 8)


def stays(state: State | None, rules: Rules, bands: int) -> bool:
    """Say whether the accounts may stay when the number of bands becomes ``bands``: they do where it is the same.

    Else they begin anew, as in a new pool, once nobody lives who has another number.

    Raises:
        StoreError: somebody does.
    """
    if bands == len(rules.bands):
        return True
    records = () if state is None else state.replicas.values()
    last = 0 if state is None else state.last
    if any(each.seen > last - rules.ttl_ms and len(each.waiting) not in {0, bands} for each in records):
        raise other_bands(len(rules.bands), bands)
    return False
