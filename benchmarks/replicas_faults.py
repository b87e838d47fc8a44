"""What faults of a store and of gateways cost, with yes or no for each part of what docs/scale.md promises.

Three gateways, all of p0 at one and all of p2 at another, 2.5 times the load, faults of 20 s. In virtual time with the
very code of gateway and ledger, several seeds each; with ``--real`` also once with processes and a Valkey, where what
others do on the machine counts as well.

``python -m benchmarks.replicas_faults [--seeds N] [--real] [--only PART_OF_A_NAME]``
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import replicas
from tidegate.simulation.replica_trials import FAULTS, NORMAL_S, TTL_S, Figures, Trial, quantile, run
from tidegate.testing.replicas import Pool, for_a_while, replica_pool
from tidegate.testing.valkey import valkey_process

Row = tuple[str, str, str]
SECONDS = {"gateway frozen": 10.0}
SETTLE_S, LOOK_S = 8.0, 8.0
SEATS = 16
SPARE = 3
TENTH_S = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    options = parser.parse_args()
    for row in _rows(options.seeds, options.only, real=options.real):
        sys.stdout.write("  ".join(row) + "\n")
        sys.stdout.flush()


def _rows(seeds: int, only: str, *, real: bool) -> Iterator[Row]:
    for name in FAULTS:
        if name and seeds and only in name:
            yield _virtual(name, seeds)
    for name, story in replicas.FAULTS.items():
        if real and only in name:
            yield asyncio.run(_real(name, story))


def _yes(parts: dict[str, bool]) -> str:
    return ", ".join(f"{part} {'yes' if held else 'NO'}" for part, held in parts.items())


# -- in virtual time -----------------------------------------------------------------------------------------------


def _virtual(name: str, seeds: int) -> Row:
    found = []
    for seed in range(1, seeds + 1):
        trial = Trial(name, seconds=SECONDS.get(name, 20.0), seed=seed)
        plain = Trial("", seconds=trial.seconds, seed=seed)
        found.append((run(trial), run(plain)))
    parts: dict[str, bool] = {}
    for figures, plain_figures in found:
        for part, held in _held(name, figures, plain_figures).items():
            parts[part] = parts.get(part, True) and held
    each = [figures for figures, _ in found]
    note = (
        f"at most {max(one.most for one in each)} of {SEATS} running, {100 * min(one.used for one in each):.0f} % used "
        f"or more, {100 * min(one.used_late for one in each):.0f} % after the lease; p0 waits "
        f"{_cuts([one.waits for one in each])} (without a fault {_cuts([plain.waits for _, plain in found])}), ten "
        f"seconds later {_cuts([one.waits_after for one in each])}; "
        f"{sum(one.lost for one in each)} died with their gateway; longest first in line with room in the share, by "
        f"band: {', '.join(f'{1000 * max(one.longest_s[band] for one in each):.0f}' for band in range(3))} ms"
    )
    return (f"virtual, {seeds} seeds: {name}", _yes(parts), note)


def _held(name: str, found: Figures, plain: Figures) -> dict[str, bool]:
    excess = found.shares[0] if name == "gateway of p0 cut off" else SPARE
    parts = {
        "within seats and excess": found.most <= SEATS + excess and found.most_after <= SEATS,
        "none lost or twice": not (found.gone or found.twice or (found.lost and name != "gateway killed")),
        "throughput": found.used >= 0.75,
        "order after 10 s": found.used_after >= 0.99
        and found.least >= 4
        and found.passed <= 0.13
        and quantile(found.waits_after, 0.5) <= 1.5 * quantile(plain.waits_after, 0.5) + 0.05,
    }
    if name in {"gateway killed", "gateway frozen"}:
        parts["seats back"] = found.used_late >= 0.97
    if name in {"store stopped", "store killed, back empty", "gateway of p0 cut off"}:
        parts["p0 within 0.1 s"] = found.longest_s[0] <= TENTH_S
    return parts


def _cuts(waits: list[list[float]]) -> str:
    values = sorted(wait for each in waits for wait in each)
    return " / ".join(f"{1000 * quantile(values, part):.0f}" for part in (0.5, 0.99)) + " ms"


# -- with processes ------------------------------------------------------------------------------------------------


async def _real(name: str, story: replicas.Story) -> Row:
    hold_s = 1.0
    with tempfile.TemporaryDirectory() as folder, valkey_process() as store:
        url = f"valkey://127.0.0.1:{{port}}#{store.port}"
        cut = name == "gateway of p0 cut off"
        async with replica_pool(Path(folder), url, seats=SEATS, hold_s=hold_s, cut=cut) as pool:
            rows: list[Row] = []

            async def play() -> None:
                await asyncio.sleep(SETTLE_S)
                shares = [_share(await asyncio.to_thread(each.state)) for each in pool.gateways]
                began = time.monotonic()
                watched = asyncio.ensure_future(_ready(pool))
                await story(pool, store, SECONDS.get(name, 20.0))
                ended = time.monotonic()
                await asyncio.sleep(NORMAL_S + LOOK_S)
                rows.append(_judge(name, pool, (began, ended, time.monotonic()), shares, await watched))

            await for_a_while(pool.overload(), play)
            return rows[0]


async def _ready(pool: Pool) -> tuple[bool, bool]:
    """Some seconds into the fault: whether the first gateway is ready, and whether it says that it is alone."""
    await asyncio.sleep(4.0)
    metrics = await asyncio.to_thread(pool.gateways[0].metrics)
    state = await asyncio.to_thread(pool.gateways[0].state)
    return state["not_ready"] is None, metrics["tidegate_store_degraded"] == 1.0


def _share(state: dict[str, object]) -> int:
    (pool,) = state["cluster"]["pools"].values()  # type: ignore[index]
    return int(pool["solo_share"])


def _judge(
    name: str, pool: Pool, times: tuple[float, float, float], shares: list[int], ready: tuple[bool, bool]
) -> Row:
    began, ended, now = times
    hold_s, normal_s = pool.hold_s, times[1] + NORMAL_S
    most, used = pool.running(began, ended + NORMAL_S)[0], pool.running(began, ended)[1]
    late_s = began + TTL_S + 0.5
    late = pool.running(late_s, ended)[1]
    after_most, after = pool.running(normal_s, now)
    order = pool.order(normal_s, now)
    least = min((order[at : at + 100].count(2) for at in range(max(1, len(order) - 100))), default=0)
    excess = shares[0] if name == "gateway of p0 cut off" else SPARE
    waits = [pool.waits(0, began, ended), pool.waits(0, normal_s - hold_s, now - hold_s)]
    parts = {
        "within seats and excess": most <= SEATS + excess + 1,  # the clock of the record
        "none lost or twice": pool.twice() == [] and (pool.failed == 0 or name == "gateway killed"),
        "throughput": used >= 0.75,
        "order after 10 s": after >= 0.95 and least >= 4,
    }
    if name in {"gateway killed", "gateway frozen"}:
        parts["seats back"] = late >= 0.95
    if name in {"store stopped", "gateway of p0 cut off"}:
        parts["ready and says so"] = all(ready)
    note = (
        f"at most {most} of {SEATS} running, {100 * used:.0f} % used, {100 * late:.0f} % after the lease; p0 waits "
        f"{_cuts(waits[:1])}, ten seconds later {_cuts(waits[1:])}, {100 * after:.0f} % used and at most {after_most} "
        f"running; {pool.failed} lost with "
        f"their gateway, {len(pool.twice())} sent twice"
    )
    return (f"processes: {name}", _yes(parts), note)


if __name__ == "__main__":
    main()
