"""The ledger of a pool with one replica decides as the scheduler does."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.between import QuickBetween
from tidegate.core.shares import Shares
from tidegate.stores.ledger_memory import MemoryPool
from tidegate.stores.ledger_protocol import PPM, BackendConfig, BandConfig, Bid, Head, PoolConfig, Report

BANDS = 3
Step = list[tuple[int, int] | None]
"""Of each band age (ms) and work of its only ticket, or nothing."""
STEPS = st.lists(
    st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 9000), st.integers(0, 50))), min_size=BANDS, max_size=BANDS),
    min_size=1,
    max_size=80,
)
FLOORS = st.lists(st.sampled_from([0, 40_000, 50_000, 100_000]), min_size=BANDS, max_size=BANDS)


def pool(config: PoolConfig) -> MemoryPool:
    made = MemoryPool()
    made.configure(config)
    return made


def served(ledger: MemoryPool, steps: list[Step]) -> list[tuple[int, str] | None]:
    """Give the only seat to one ticket after another."""
    order: list[tuple[int, str] | None] = []
    epoch = ack = 0
    for sequence, step in enumerate(steps, start=1):
        bids = []
        for band, waiting in enumerate(step):
            if waiting is not None:
                head = Head(waiting[0], "t", waiting[1])
                bids.append(Bid(band, 1, head, (head,)))
        reply = ledger.turn(1_000_000, "one", Report(epoch, sequence, ack, (), tuple(bids)), lambda *_: True)
        epoch = reply.epoch
        grants = [(grant.band, str(grant.kind)) for grant in reply.grants]
        ack = max([ack, *(grant.number for grant in reply.grants)])
        assert len(grants) == bool(bids)
        order.append(grants[0] if grants else None)
    return order


@given(STEPS, FLOORS, st.sampled_from([0, 50_000, 300_000]))
def test_ageing_floors_and_the_cap(steps: list[Step], floors: list[int], extra: int) -> None:
    weights, agings = (100, 20, 1), (50_000, 20_000, 5_000)
    bands = [
        BandConfig(weight_ppm=weight * PPM, aging_ppm=aging, floor_ppm=floor)
        for weight, aging, floor in zip(weights, agings, floors, strict=True)
    ]
    config = PoolConfig(
        version=1,
        bands=tuple(bands),
        backends=(BackendConfig(name="b", seats=1),),
        cap_ppm=sum(floors) + extra,
        rebuild_ms=0,
    )
    core = QuickBetween([Fraction(floor, PPM) for floor in floors], Fraction(sum(floors) + extra, PPM))
    expected = []
    for step in steps:
        claims: list[float | None] = [
            None if waiting is None else weight * PPM + aging * waiting[0]
            for waiting, weight, aging in zip(step, weights, agings, strict=True)
        ]
        choice = core.decide(claims, [None] * BANDS) if any(claim is not None for claim in claims) else None
        expected.append(None if choice is None else (choice[0], str(choice[1])))
    assert served(pool(config), steps) == expected


@given(STEPS, st.lists(st.integers(1, 9), min_size=BANDS, max_size=BANDS))
def test_weighted_shares(steps: list[Step], shares: list[int]) -> None:
    config = PoolConfig(
        version=1,
        bands=tuple(BandConfig(share=share) for share in shares),
        backends=(BackendConfig(name="b", seats=1),),
        discipline="weighted",
        cap_ppm=0,
        rebuild_ms=0,
    )
    core = Shares(shares)
    expected: list[tuple[int, str] | None] = []
    for step in steps:
        wanted = core.wanted([None if waiting is None else 0 for waiting in step], [None] * BANDS)
        if wanted is not None:
            core.charge(wanted, step[wanted][1])  # type: ignore[index]
        expected.append(None if wanted is None else (wanted, "turn"))
    assert served(pool(config), steps) == expected
