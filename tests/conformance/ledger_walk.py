"""Random replicas for the differential test of ledgers: they obey the protocol more or less."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from conformance.ledger_stage import BANDS
from tidegate.stores.ledger_protocol import (
    PPM,
    BackendConfig,
    BandConfig,
    Bid,
    Charge,
    Grant,
    Head,
    PoolConfig,
    Reply,
    Report,
    TenantConfig,
)


@dataclass
class Walk:
    """Random replicas that obey the protocol more or less, for the differential test."""

    seed: int
    now: int = 1_700_000_000_000
    epochs: dict[str, int] = field(default_factory=dict)
    sequences: dict[str, int] = field(default_factory=dict)
    acks: dict[str, int] = field(default_factory=dict)
    charges: int = 0
    last: dict[str, Report] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        rng = self.rng
        self.backends = [f"b{index}" for index in range(rng.choice([1, 1, 2, 3]))]
        self.replicas = [f"{'x' if rng.random() < 0.1 else 'r'}{index}" for index in range(rng.randint(2, 10))]
        self.tenants = [f"t {index}é" for index in range(rng.choice([1, 4, 12]))]
        self.masked = rng.random() < 0.3
        self.budgeted = rng.random() < 0.3
        self.discipline = rng.choice(["aging", "weighted", "strict"])
        self.bands = self._bands()
        self.rebuild_ms = rng.choice([0, 500])
        self.version = 0

    def _bands(self) -> tuple[BandConfig, ...]:
        rng = self.rng
        bands = []
        for index, band in enumerate(BANDS):
            changes: dict[str, object] = {"share": rng.randint(1, 9)}
            if rng.random() < 0.3:
                changes["ceiling_ppm"] = rng.choice([300_000, 600_000])
            if rng.random() < 0.3:
                changes["reserve"] = rng.randint(0, 2)
            if index and rng.random() < 0.5:
                changes["promote_after_ms"] = rng.choice([500, 3000])
            if index:
                changes["floor_ppm"] = rng.choice([0, 50_000, 40_000])
            bands.append(_changed(band, changes))
        return tuple(bands)

    def config(self) -> PoolConfig:
        """The next version of the configuration."""
        rng = self.rng
        self.version += 1
        if self.version > 1 and rng.random() < 0.5:
            self.bands = self._bands()
        names = self.backends if self.version == 1 or rng.random() < 0.7 else self.backends[:1]
        backends = tuple(
            BackendConfig(
                name=name,
                seats=rng.choice([0, 3, 8, 20, 40]),
                auto=rng.random() < 0.3,
                tokens_per_minute=rng.choice([600, 6000]) if self.budgeted and rng.random() < 0.5 else 0,
                requests_per_minute=rng.choice([60, 600]) if self.budgeted and rng.random() < 0.3 else 0,
            )
            for name in names
        )
        tenants = tuple(
            TenantConfig(
                name=name,
                weight_ppm=rng.choice([PPM, 2 * PPM, 333_333]),
                tokens_per_minute=rng.choice([0, 600]) if self.budgeted else 0,
                requests_per_minute=rng.choice([0, 0, 60]) if self.budgeted else 0,
            )
            for name in self.tenants[:3]
        )
        return PoolConfig(
            version=self.version,
            bands=self.bands,
            backends=backends,
            tenants=tenants,
            discipline=self.discipline,
            by_tokens=rng.random() < 0.5,
            cap_ppm=rng.choice([100_000, 150_000, 400_000]),
            mode=rng.choice(["", "transactions_only"]),
            ttl_ms=2000,
            heartbeat_ms=300,
            recall_ms=500,
            rebuild_ms=self.rebuild_ms,
            unconfirmed_max=rng.choice([0, 0, 2, 8]),
        )

    def step(self) -> tuple[int, str, Report | None]:
        """The next call: time, replica, and what it reports; ``None``: it leaves."""
        rng = self.rng
        self.now += rng.choice([0, 0, 1, 3, 20, 120]) if rng.random() < 0.97 else rng.choice([-500, -90_000, 700, 3000])
        replica = rng.choice(self.replicas)
        if replica in self.last and rng.random() < 0.05:
            return self.now, replica, self.last[replica]
        if rng.random() < 0.01:
            return self.now, replica, None
        return self.now, replica, self._report(replica)

    def _report(self, replica: str) -> Report:
        rng = self.rng
        self.sequences[replica] = self.sequences.get(replica, 0) + rng.choice([1, 1, 1, 2, -1])
        ack = self.acks.get(replica, 0) + (rng.choice([0, 0, 1, 3]) if rng.random() < 0.1 else 0)
        charges = []
        for _ in range(rng.choice([0, 0, 0, 1, 3])):
            self.charges += 1
            number = self.charges - rng.choice([0, 0, 0, 2])
            work = rng.randint(-40, 60)
            charges.append(Charge(number, rng.randrange(3), rng.choice(self.tenants), work, rng.choice(self.backends)))
        control = rng.random() < 0.1
        report = Report(
            epoch=self.epochs.get(replica, 0) if rng.random() < 0.98 else 7,
            sequence=self.sequences[replica],
            ack=ack,
            used=tuple((name, rng.choice([0, 0, 0, 1, 3])) for name in self.backends if rng.random() < 0.8),
            bids=tuple(self._bid(band) for band in range(3) if rng.random() < 0.6),
            charges=tuple(charges),
            waiting=tuple(rng.randint(0, 9) for _ in range(3)),
            rates_ppm=tuple(rng.randint(0, 10**7) for _ in range(rng.choice([0, 3]))),
            seats=tuple((name, rng.randint(0, 12)) for name in self.backends) if control else (),
            reserve=tuple(rng.randint(0, 2) for _ in range(3)) if control else (),
            top=rng.choice([0, 0, 1, 4]),
            file=rng.choice(["", "a1", "b2"]),
            short=tuple(rng.random() < 0.5 for _ in range(3)) if control else (),
        )
        self.last[replica] = report
        return report

    def _bid(self, band: int) -> Bid:
        rng = self.rng
        heads = tuple(self._head() for _ in range(rng.randint(1, 8)))
        oldest = rng.choice(heads) if rng.random() < 0.7 else Head(6000, rng.choice(self.tenants), rng.randint(0, 90))
        some = rng.sample(self.backends, rng.randint(1, len(self.backends)))
        masked = self.masked and rng.random() < 0.5
        return Bid(band, rng.randint(1, 12), oldest, heads, tuple(some) if masked else ())

    def _head(self) -> Head:
        rng = self.rng
        prefer = rng.choice(["", "", "b0", "b1", "gone"])
        return Head(rng.choice([0, 5, 40, 1500, 5000]), rng.choice(self.tenants), rng.randint(0, 90), prefer)

    def heard(self, replica: str, reply: Reply) -> None:
        """Learn from a reply, as replicas do; now and then not."""
        rng = self.rng
        if self.epochs.get(replica) != reply.epoch:
            self.epochs[replica], self.acks[replica] = reply.epoch, 0
            self.sequences[replica] = 1 if rng.random() < 0.8 else self.sequences.get(replica, 0)
        if reply.grants and rng.random() < 0.7:
            self.acks[replica] = max(self.acks.get(replica, 0), reply.grants[-1].number)


def _changed(band: BandConfig, changes: dict[str, object]) -> BandConfig:
    values = {name: getattr(band, name) for name in BandConfig.__struct_fields__}
    return BandConfig(**(values | changes))


def listens(replica: str, epoch: int, grant: Grant) -> bool:
    """In the differential test a name with an x has no listener."""
    return not replica.startswith("x")
