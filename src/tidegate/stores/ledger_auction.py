"""Grant the free seats of a pool: which band, which replica, which backend (SPEC §4.1, §4.2). Pure.

The band is chosen by ``core.between`` over what all replicas bid, with the wanted band of ``core.shares``. Inside the
band the lowest tenant counter goes first, then the earliest arrival; an overtake is for whoever has waited longest.
A grant to a replica that does not listen is not made: its bids are taken out, and no account has moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Final

from tidegate.core import Turn
from tidegate.core.between import Between
from tidegate.stores.ledger_protocol import PPM, Grant
from tidegate.stores.ledger_rules import TOKEN, BandRule, Quota, Rules
from tidegate.stores.ledger_state import Bucket, LiveBid, Record, State, Waiting, seats_of, unconfirmed_most

Push = Callable[[str, int, Grant], bool]
"""Push a grant to a replica of an epoch; false when nobody listens there."""
GRANTS_MAX: Final = 64
"""In one call, to keep calls short; whoever reports next goes on."""
PRUNE_EVERY: Final = 256
Held = list[str | None]


class Auction:
    """One call's worth of grants, on behalf of the replica ``me`` that reports."""

    def __init__(self, state: State, rules: Rules, now: int, me: str, push: Push) -> None:
        self.state, self.rules, self.now, self.me, self.push = state, rules, now, me, push
        self.total = seats_of(state, rules)
        self.most = unconfirmed_most(state, rules)
        self.reserve = state.reserve or tuple(band.reserve for band in rules.bands)
        self.held = held_by_all(state, rules)
        self.between = Between((), Fraction(0))  # its accounts are those of the state
        self.between.period = [band.period for band in rules.bands]
        self.between.join = [band.join for band in rules.bands]
        self.between.unit, self.between.earn = rules.unit, rules.earn
        self.between.gap, self.between.credit = state.gap, state.credit

    def run(self) -> None:
        """Grant until no seat is free that a bid may use."""
        for _ in range(GRANTS_MAX):
            if not self._grant_one():
                return

    def _grant_one(self) -> bool:
        """Make one grant, or take out the bids of a replica that is gone; false when there is nothing to do."""
        free = self._free()
        if not free:
            return False
        able = [self._able(band, free) for band in range(len(self.rules.bands))]
        claims = [self._claim(band, each) if each else None for band, each in enumerate(able)]
        gated = [each is not None and not each for each in able]
        held = self._holds(sum(free.values()))
        wanted = self._wanted(claims, held) if self.rules.discipline == "weighted" else None
        bids: list[float | None] = [0 if shut else claim for claim, shut in zip(claims, gated, strict=True)]
        chosen = self.between.choose(bids, gated, held, wanted)
        if chosen is None:
            return False
        band, kind = chosen
        replica, ticket, counter = self._first(band, kind, able[band] or [])
        record = self.state.replicas[replica]
        backend = self._backend(ticket, record.bids[band], free)
        grant = Grant(record.number + 1, band, backend, kind, self.now)
        if replica != self.me and not self.push(replica, record.epoch, grant):
            record.bids = {}
            return True
        self.between.commit(band, kind, bids, gated, held)
        if self.rules.discipline == "weighted":
            self._share(band, ticket.work if self.rules.by_tokens else 1, claims, held)
        self._take(record, grant)
        self._pay(band, kind, ticket, counter, backend)
        bid = record.bids[band]
        bid.advance(kind)
        if bid.count <= 0:
            del record.bids[band]
        return True

    def _free(self) -> dict[str, int]:
        """Free seats of the backends that have some and whose quota is not used up."""
        free = {}
        for name, seats in self.total.items():
            left = seats - self.held[name]
            if left > 0 and (name not in self.rules.quotas or not self._debt(self.state.quotas, name)):
                free[name] = left
        return free

    def _debt(self, buckets: dict[str, Bucket], name: str) -> int:
        quota = (self.rules.quotas if buckets is self.state.quotas else self.rules.budgets)[name]
        return wait_ms(buckets, name, quota, self.now)

    def _able(self, band: int, free: dict[str, int]) -> list[str] | None:
        """Return the replicas whose bid can use a free seat, ``None`` when there is no bid at all."""
        any_bid, able = False, []
        for name, record in self.state.replicas.items():
            bid = record.bids.get(band)
            if bid is None or not record.listed:
                continue
            any_bid = True
            tenant = bid.heads[0].tenant
            if bid.backends and not any(backend in free for backend in bid.backends):
                continue
            if tenant in self.rules.budgets and self._debt(self.state.budgets, tenant):
                continue
            able.append(name)
        return able if any_bid else None

    def _oldest(self, band: int, able: Iterable[str]) -> tuple[int, int, str]:
        replicas = self.state.replicas
        return min((replicas[name].bids[band].oldest.arrived_ms, replicas[name].epoch, name) for name in able)

    def _claim(self, band: int, able: list[str]) -> int:
        return bid_of(self.rules, band, self.now - self._oldest(band, able)[0])

    def _holds(self, free: int) -> Held:
        """As ``core.gates.holds``: what is left of a short reserve lets only floors pass, like a ceiling."""
        total, taken = sum(self.total.values()), sum(self.held.values())
        held: Held = []
        least, firm = 0, -1
        for band, rule in enumerate(self.rules.bands):
            if taken * PPM > rule.ceiling_ppm * total or free <= firm:
                held.append("ceiling")
            else:
                held.append("reserve" if free <= least else None)
            own = self.reserve[band] if band < len(self.reserve) else 0
            least = max(least, own)
            if band < len(self.state.short) and self.state.short[band]:
                firm = max(firm, own)
        return held

    def _wanted(self, claims: list[int | None], held: Held) -> int | None:
        """As ``core.shares.wanted``, without noting anything."""
        state, best, least = self.state, None, 0
        for band, claim in enumerate(claims):
            if claim is None or held[band]:
                continue
            due = max(state.due[band], state.present) if state.out[band] else state.due[band]
            if best is None or due < least:
                best, least = band, due
        return best

    def _share(self, band: int, cost: int, claims: list[int | None], held: Held) -> None:
        """Note what ``wanted`` saw, and charge the dispatch."""
        state, least = self.state, None
        for each, claim in enumerate(claims):
            away = claim is None or held[each] is not None
            if not away:
                if state.out[each]:
                    state.due[each] = max(state.due[each], state.present)
                least = state.due[each] if least is None else min(least, state.due[each])
            state.out[each] = away
        state.present = max(state.present, least or 0)
        state.due[band] = max(state.due[band], state.present + cost * self.rules.bands[band].step)

    def _first(self, band: int, kind: Turn, able: list[str]) -> tuple[str, Waiting, int]:
        """Return whose ticket it is, the ticket as bid, and its tenant's counter."""
        replicas = self.state.replicas
        if kind is Turn.OVERTAKE:
            name = self._oldest(band, able)[2]
            ticket = replicas[name].bids[band].oldest
            return name, ticket, counter_of(self.state, band, ticket.tenant)
        keys = []
        for name in able:
            head = replicas[name].bids[band].heads[0]
            keys.append((counter_of(self.state, band, head.tenant), head.arrived_ms, replicas[name].epoch, name))
        counter, _, _, name = min(keys)
        return name, replicas[name].bids[band].heads[0], counter

    def _backend(self, ticket: Waiting, bid: LiveBid, free: dict[str, int]) -> str:
        allowed = [name for name in free if not bid.backends or name in bid.backends]
        if ticket.prefer in allowed:
            return ticket.prefer
        return max(allowed, key=lambda name: free[name])  # the first of equals

    def _take(self, record: Record, grant: Grant) -> None:
        record.number = grant.number
        record.pending.append(grant)
        record.listed = record.listed and len(record.pending) < self.most
        record.held[grant.backend] = record.held.get(grant.backend, 0) + 1
        self.held[grant.backend] += 1

    def _pay(self, band: int, kind: Turn, ticket: Waiting, counter: int, backend: str) -> None:
        """Charge the tenant's counter and budget and the backend's quota with the estimate."""
        state, rules = self.state, self.rules
        state.grants += 1
        state.tokens[backend] = state.tokens.get(backend, 0) + ticket.work
        if kind is not Turn.OVERTAKE:
            state.clocks[band] = max(state.clocks[band], counter)
        counters = state.counters[band]
        counters[ticket.tenant] = counter + ticket.work * rules.steps.get(ticket.tenant, TOKEN)
        if state.grants % PRUNE_EVERY == 0:
            clock = state.clocks[band]
            state.counters[band] = {tenant: value for tenant, value in counters.items() if value >= clock}
        if backend in rules.quotas:
            bucket_of(state.quotas, backend).charge(ticket.work, 1)
        if ticket.tenant in rules.budgets:
            bucket_of(state.budgets, ticket.tenant).charge(ticket.work, 1)


def bid_of(rules: Rules, band: int, age_ms: int) -> int:
    """Return the score that a band bids when its oldest ticket has waited so long (``core.claims``)."""
    rule = rules.bands[band]
    own = _score(rule, age_ms)
    if not rule.promote_after_ms or age_ms <= rule.promote_after_ms:
        return own
    if rules.discipline != "aging":
        return 2 * len(rules.bands) - band
    return max(own, _score(rules.bands[band - 1], age_ms))


def _score(rule: BandRule, age_ms: int) -> int:
    return rule.weight + rule.aging * age_ms


def counter_of(state: State, band: int, tenant: str) -> int:
    """Return a tenant's counter; a newcomer starts at the band's clock."""
    return max(state.counters[band].get(tenant, 0), state.clocks[band])


def bucket_of(buckets: dict[str, Bucket], name: str) -> Bucket:
    """Return the bucket of a backend or a tenant."""
    bucket = buckets.get(name)
    if bucket is None:
        bucket = buckets[name] = Bucket()
    return bucket


def wait_ms(buckets: dict[str, Bucket], name: str, quota: Quota, now: int) -> int:
    """Return the milliseconds until a quota allows more, 0 when it does."""
    bucket = bucket_of(buckets, name)
    bucket.drain(quota, now)
    return bucket.wait_ms(quota)


def held_by_all(state: State, rules: Rules) -> dict[str, int]:
    """Return the seats that all replicas hold, per backend."""
    held = dict.fromkeys(rules.backends, 0)
    for record in state.replicas.values():
        for name, count in record.held.items():
            held[name] += count
    return held
