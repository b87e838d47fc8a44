"""The ledger of one pool as plain functions of its state, a report and the time: the reference of all ledgers.

The memory ledger is this; the ledger in PostgreSQL runs this inside a transaction; the function inside Valkey is held
to it by a test that feeds both the same reports. What each step is for:

1. When the ledger itself was away (nobody called for two heartbeats) nobody is late: the pool closes so that all
   report, and no seat comes back before everybody had the time to.
2. Grants that nobody confirmed for ``recall_ms`` are taken back: their receiver is frozen. The receiver ignores grants
   older than half of that, so it does not start what was taken back.
3. Epochs differ over restarts of the ledger, else acknowledgements of the old world would match in the new one.
4. ``held = used + unconfirmed``: a seat is granted once and comes back once, whatever is lost or repeated.
"""

from __future__ import annotations

from tidegate.stores.ledger_auction import (
    Auction,
    Push,
    bucket_of,
    counter_of,
    held_by_all,
    wait_ms,
)
from tidegate.stores.ledger_protocol import PPM, Bid, Charge, PoolView, ReplicaRow, Reply, Report
from tidegate.stores.ledger_rules import TOKEN, Rules
from tidegate.stores.ledger_state import Record, State, adapt, live, seats_of, unconfirmed_most

USE_MS = 30_000
"""Time constant of the use that solo shares are dealt by."""


def turn(state: State, rules: Rules, now: int, replica: str, report: Report, push: Push) -> Reply:
    """Take a report, grant what is free, and answer.

    Args:
        state: of the pool; changed in place.
        rules: in force.
        now: milliseconds of the store's clock. A smaller one than before is taken as the latest seen; where it is
            smaller by more than two heartbeats that clock was set back, and time goes on from the latest seen.
        replica: who reports.
        report: what it says.
        push: tells other replicas of their grants.
    """
    now = _clock(state, rules, now)
    if state.version != rules.version:
        adapt(state, rules)
    _recall(state, rules, now, replica)
    record = state.replicas.get(replica)
    sequence, ack = report.sequence, report.ack
    if record is None or record.epoch != report.epoch:
        state.epoch = max(state.epoch + 1, now)
        sequence, ack = 1, 0
        record = state.replicas[replica] = Record(epoch=state.epoch, seen=now)
    _average(record, now)
    if state.controller not in {(name, each.epoch) for name, each in state.replicas.items()}:
        state.controller = (replica, record.epoch)
    if sequence > record.sequence:
        record.sequence = sequence
        _take(state, rules, now, record, report, ack)
        if state.controller == (replica, record.epoch):
            _control(state, rules, report)
    if now >= state.open:
        Auction(state, rules, now, replica, push).run()
    return _reply(state, rules, now, replica, report)


def leave(state: State, replica: str) -> None:
    """Forget a replica."""
    state.replicas.pop(replica, None)


def _clock(state: State, rules: Rules, now: int) -> int:
    """Move time on, and forget who is late."""
    if now + state.ahead < state.last - 2 * rules.heartbeat_ms:  # else nobody would be late until it has caught up
        state.ahead = state.last - now
    now = max(now + state.ahead, state.last)
    if now - state.last > 2 * rules.heartbeat_ms and state.replicas:
        state.grace = now + rules.ttl_ms
        state.open = max(state.open, now + rules.rebuild_ms)
    state.last = now
    if now >= state.grace:
        late = [name for name, record in state.replicas.items() if record.seen <= now - rules.ttl_ms]
        for name in late:
            leave(state, name)
    return now


def _recall(state: State, rules: Rules, now: int, me: str) -> None:
    """Take back grants that others did not confirm in time, and their bids until they speak."""
    for name, record in state.replicas.items():
        if name != me and record.pending and record.pending[0].at_ms <= now - rules.recall_ms:
            for grant in record.pending:
                record.held[grant.backend] -= 1
            record.pending, record.bids = [], {}


def _average(record: Record, now: int) -> None:
    held = sum(record.held.values()) * PPM
    passed = min(USE_MS, now - record.seen)
    record.use += (held - record.use) * passed // USE_MS
    record.top -= record.top * passed // USE_MS
    record.seen = now


def _take(state: State, rules: Rules, now: int, record: Record, report: Report, ack: int) -> None:
    """Take over what a new report says."""
    for charge in report.charges:
        if charge.number > record.charged:
            record.charged = charge.number
            _settle(state, rules, now, charge)
    record.ack = max(record.ack, ack)
    record.number = max(record.number, ack)  # the store fell back to an older copy: never use a number twice
    oldest = now - rules.recall_ms
    record.pending = [each for each in record.pending if each.number > record.ack and each.at_ms > oldest]
    record.held = {name: used for name, used in report.used if name in rules.backends and used > 0}
    top = report.top
    for grant in record.pending:
        record.held[grant.backend] = record.held.get(grant.backend, 0) + 1
        top += grant.band == 0
    record.top = max(record.top, min(top, sum(record.held.values())) * PPM)
    record.listed = len(record.pending) < unconfirmed_most(state, rules)
    record.waiting, record.rates, record.file = report.waiting, report.rates_ppm, report.file
    record.bids = {}
    for bid in report.bids:
        if 0 <= bid.band < len(rules.bands) and bid.count > 0 and bid.heads:
            _bid(record, bid, now)


def _bid(record: Record, bid: Bid, now: int) -> None:
    """Note a bid, without the tickets that unconfirmed grants will take."""
    fresh = live(bid, now)
    for grant in record.pending:
        if grant.band == bid.band and fresh.count > 0:
            fresh.advance(grant.kind)
    if fresh.count > 0:
        record.bids[bid.band] = fresh


def _settle(state: State, rules: Rules, now: int, charge: Charge) -> None:
    """Count the difference between actual use and estimate."""
    if 0 <= charge.band < len(rules.bands):
        counters = state.counters[charge.band]
        step = rules.steps.get(charge.tenant, TOKEN)
        counters[charge.tenant] = counters.get(charge.tenant, 0) + charge.tokens * step
    for buckets, quotas, name in (
        (state.budgets, rules.budgets, charge.tenant),
        (state.quotas, rules.quotas, charge.backend),
    ):
        if name in quotas:
            bucket = bucket_of(buckets, name)
            bucket.drain(quotas[name], now)
            bucket.charge(charge.tokens, 0)


def _control(state: State, rules: Rules, report: Report) -> None:
    """Obey the replica that runs the seat controller."""
    auto = dict(zip(rules.backends, rules.auto, strict=True))
    for name, seats in report.seats:
        if auto.get(name) and seats >= 0:
            state.seats[name] = seats
    state.reserve = report.reserve if len(report.reserve) == len(rules.bands) else ()
    state.short = report.short if len(report.short) == len(rules.bands) else ()


def solo_share(state: State, total: int, record: Record) -> int:
    """Return the seats a replica may use alone: what its highest band has used, and of the rest a part by its use.

    What that band used at its recent peak goes beyond the replica's part by average use for at most an eighth of all
    seats, all replicas together: seats kept for bursts are idle in between, and the others' work is not to wait for
    that. The rest is dealt by average use beyond, ``(use + m) / (sum of use + n * m)`` with ``m = total / 8n`` seats,
    so that everyone has a little. Replicas round one after another, in the order of their epochs, so that all shares
    together are all seats; but each replica has one.
    """
    records = list(state.replicas.values())
    firsts = _firsts(records, total)
    tops, count, least = sum(firsts), len(records), total * 100
    if tops >= total * 1000:
        parts = [total * 1000 * first // tops if tops else 0 for first in firsts]
    else:
        belows = [max(0, each.use - first * 1000) // 10_000 for each, first in zip(records, firsts, strict=True)]
        left, whole = total * 1000 - tops, 8 * count * sum(belows) + count * least  # exact in a Lua number
        parts = [
            first + left * (8 * count * below + least) // whole for first, below in zip(firsts, belows, strict=True)
        ]
    before = 2 * count  # more than was lost by rounding down
    mine = 0
    for each, part in zip(records, parts, strict=True):
        before += part if each.epoch < record.epoch else 0
        mine += part if each is record else 0
    return max(1, (before + mine) // 1000 - before // 1000)


def _firsts(records: list[Record], total: int) -> list[int]:
    """Return what each replica is dealt for its highest band, in thousandths of a seat."""
    use = sum(each.use // 1000 for each in records)
    overs = []
    for each in records:
        part = total * 1000 * (each.use // 1000) // use if use else total * 1000
        overs.append(max(0, each.top // 1000 - part))
    over, most = sum(overs), total * 125
    cuts = [beyond - beyond * most // over if over > most else 0 for beyond in overs]
    return [each.top // 1000 - cut for each, cut in zip(records, cuts, strict=True)]


def _reply(state: State, rules: Rules, now: int, replica: str, report: Report) -> Reply:
    record = state.replicas[replica]
    seats, held = seats_of(state, rules), held_by_all(state, rules)
    asked = [(bid.band, bid) for bid in report.bids if 0 <= bid.band < len(rules.bands)]
    tenants = [(band, tenant) for band, bid in asked for tenant in _tenants(bid)]
    owing = {tenant: None for _, tenant in tenants} | {charge.tenant: None for charge in report.charges}
    debts = [(name, wait_ms(state.budgets, name, rules.budgets[name], now)) for name in owing if name in rules.budgets]
    closed = [(name, wait_ms(state.quotas, name, rules.quotas[name], now)) for name in seats if name in rules.quotas]
    rates = [0] * len(rules.bands)
    for each in state.replicas.values():
        for band, rate in enumerate(each.rates[: len(rates)]):
            rates[band] += rate
    return Reply(
        epoch=record.epoch,
        grants=tuple(record.pending),
        open_in_ms=max(0, state.open - now),
        solo_share=solo_share(state, sum(seats.values()), record),
        now_ms=now,
        version=rules.version,
        mode=rules.mode,
        replicas=len(state.replicas),
        charged=record.charged,
        controller=state.controller == (replica, record.epoch),
        counters=tuple((band, tenant, counter_of(state, band, tenant)) for band, tenant in tenants),
        clocks=tuple(state.clocks),
        seats=tuple((name, seats[name], held[name], state.tokens.get(name, 0)) for name in seats),
        reserve=state.reserve or tuple(band.reserve for band in rules.bands),
        rates_ppm=tuple(rates),
        debts=tuple((name, wait) for name, wait in debts if wait),
        closed=tuple((name, wait) for name, wait in closed if wait),
    )


def _tenants(bid: Bid) -> list[str]:
    """The tenants of a bid, each once, in order."""
    return list(dict.fromkeys([head.tenant for head in bid.heads] + [bid.oldest.tenant]))


def view(state: State, rules: Rules, now: int) -> PoolView:
    """Return the whole pool as people see it."""
    seats, held = seats_of(state, rules), held_by_all(state, rules)
    bands = range(len(rules.bands))
    now = max(now + state.ahead, state.last)
    rows = [
        ReplicaRow(
            name=name,
            epoch=record.epoch,
            seen_ms_ago=now - record.seen,
            held=tuple(record.held.get(backend, 0) for backend in seats),
            unconfirmed=len(record.pending),
            waiting=record.waiting,
            bid=tuple(record.bids[band].count if band in record.bids else 0 for band in bands),
            controller=state.controller == (name, record.epoch),
            file=record.file,
        )
        for name, record in sorted(state.replicas.items())
    ]
    return PoolView(
        now_ms=now,
        open_in_ms=max(0, state.open - now),
        version=rules.version,
        mode=rules.mode,
        backends=tuple(seats),
        seats=tuple(seats.values()),
        held=tuple(held[name] for name in seats),
        granted=state.grants,
        gaps=tuple(state.gap),
        credits=tuple(state.credit),
        unit=rules.unit,
        rows=tuple(rows),
    )
