"""The wall clock is set while a batch runs: a day ahead, an hour back, for gateway and worker alike."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path

import pytest

from e2e.jobs_stage import calls, client_of, config, engine, prompt_of, reach, records, rows, submit
from e2e.raw import Visit, gateway, until, whole

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.timeout(60)]

DAY_S, HOUR_S = 86_400.0, 3600.0
COUNT, SEATS = 300, 4

SET_CLOCK = """
from datetime import timedelta
from tidegate.runtime import clock
real = clock.SystemClock.utc_now
def utc_now(self):
    return real() + timedelta(seconds=float(open({path!r}).read() or 0))
clock.SystemClock.utc_now = utc_now
"""


class WallClock:
    """The wall clock of the processes that are started with ``environ``."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.set_by(0)
        place = folder / "site"
        place.mkdir()
        (place / "sitecustomize.py").write_text(SET_CLOCK.format(path=str(self._file)))
        self.environ = {"PYTHONPATH": os.pathsep.join(filter(None, (str(place), os.environ.get("PYTHONPATH"))))}

    def set_by(self, seconds: float) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(str(seconds))
        new.rename(self._file)


async def soon(visit: Visit) -> None:
    await asyncio.sleep(0.03)
    visit.answer(whole(prompt_of(visit)))


async def test_a_batch_does_not_notice_that_the_clock_is_set(tmp_path: Path) -> None:
    clock = WallClock(tmp_path)
    async with (
        engine(soon).running() as upstream,
        gateway(config(tmp_path, upstream.url, seats=SEATS), environ=clock.environ) as process,
        client_of(process.url) as client,
    ):
        batch = await submit(client, rows(COUNT))
        for number, jump_s in enumerate((DAY_S, -HOUR_S, DAY_S + HOUR_S, 0), 1):
            await until(lambda: calls(upstream).total() >= number * 50, within_s=10)  # noqa: B023
            clock.set_by(jump_s)
            if jump_s == DAY_S:
                await until(lambda: last_log_is_late(process.log), within_s=5)  # the clock is really seen
        batch = await reach(client, batch)
        output, errors = await records(client, batch)
        assert (batch.status, len(output), len(errors)) == ("completed", COUNT, 0)
        assert set(calls(upstream).values()) == {1}
        assert batch.completed_at is not None
        assert abs(batch.completed_at - time.time()) < 60  # times of jobs bend a little and do not jump


def last_log_is_late(log: Path) -> bool:
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
    now = time.strftime("%Y-%m-%d", time.gmtime())
    return bool(lines) and lines[-1]["at_utc"][:10] > now


async def test_a_window_ends_though_the_clock_was_set_back(tmp_path: Path) -> None:
    clock = WallClock(tmp_path)

    async def never(visit: Visit) -> None:
        await visit.left.wait()

    async with (
        engine(never).running() as upstream,
        gateway(config(tmp_path, upstream.url, seats=1), environ=clock.environ) as process,
        client_of(process.url) as client,
    ):
        batch = await submit(client, rows(3), window="4s")
        await until(lambda: calls(upstream).total() == 1, within_s=5)
        clock.set_by(-HOUR_S)
        began = time.monotonic()
        batch = await reach(client, batch, "finalizing")
        assert time.monotonic() - began < 40  # at half its speed at worst, and not after an hour


async def test_a_gateway_that_starts_with_another_clock_loses_nothing(tmp_path: Path) -> None:
    """Killed, and the clock set an hour back or some hours ahead: leases are taken back all the same."""
    clock = WallClock(tmp_path)
    batch, again = None, 0
    async with engine(soon).running() as upstream:
        settings = config(tmp_path, upstream.url, seats=SEATS)
        for jump_s in (-HOUR_S, 5 * HOUR_S, 0):
            async with gateway(settings, environ=clock.environ) as process, client_of(process.url) as client:
                batch = await submit(client, rows(COUNT)) if batch is None else batch
                before = calls(upstream).total()
                await until(lambda: calls(upstream).total() >= before + 40, within_s=10)  # noqa: B023
                counts = (await client.batches.retrieve(batch.id)).request_counts
                assert counts is not None
                process.signal(signal.SIGKILL)
                again += len(calls(upstream)) + SEATS - counts.completed
            clock.set_by(jump_s)
        async with gateway(settings, environ=clock.environ) as process, client_of(process.url) as client:
            assert batch is not None
            batch = await reach(client, await client.batches.retrieve(batch.id))
            output, errors = await records(client, batch)
            assert (batch.status, len(output), len(errors)) == ("completed", COUNT, 0)
            assert calls(upstream).total() <= COUNT + again
