"""Batch jobs on the dashboard: their progress, their dead letters, and what the switch does to them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from e2e.browser import browser, dashboard
from e2e.jobs_stage import client_of, config, engine, prompt_of, rows, submit
from e2e.raw import Visit, ask, chat, gateway, whole

pytestmark = [pytest.mark.services, pytest.mark.anyio, pytest.mark.timeout(200)]  # 3 to 6 s on a machine at rest


async def test_batches_are_on_the_page_and_the_switch_says_that_they_only_pause(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def behave(visit: Visit) -> None:
        prompt = prompt_of(visit)
        if prompt == "r0":
            visit.answer(b'{"error": {"message": "no"}}', 500)
            return
        if prompt not in ("r1", "r2"):
            await go_on.wait()
        visit.answer(whole(prompt))

    async with (
        engine(behave).running() as upstream,
        gateway(config(tmp_path, upstream.url, seats=2, jobs=", max_attempts: 1")) as process,
        browser() as opened,
        dashboard(opened, process.control) as screen,
        client_of(process.url) as client,
    ):
        await screen.shows("#jobs", "no batch in progress")
        batch = await submit(client, rows(10))
        await screen.shows("#jobs", batch.id.removeprefix("batch_"))
        await screen.shows("#jobs", "30% · 3/10 · 1 failed")  # r0 is dead, r1 and r2 are answered, two hang
        await screen.shows("#dead-letters", "dead letters: 1")
        await screen.shows("#jobs", "rows waiting: 5")
        waits = asyncio.ensure_future(ask(process.url, chat(), headers={"x-tidegate-band": "p2"}))
        await screen.shows("#tile-waiting-big", "6")
        await screen.page.locator("#switch").click()
        await screen.shows("#effects", "1 waiting requests (p1 0, p2 1)")
        await screen.shows("#effects", "5 rows go on waiting")
        await screen.page.locator("#confirm").click()
        assert b"load_shedding_fallback" in (await asyncio.wait_for(waits, 20)).body
        go_on.set()
        await screen.shows("#jobs", "50% · 5/10")
        await screen.shows("#tile-waiting-big", "5")
        await screen.page.locator("#back").click()
        await screen.page.locator("#confirm").click()
        await screen.shows("#jobs", "no batch in progress")
        await screen.shows("#dead-letters", "dead letters: 1")
