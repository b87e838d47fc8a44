"""Several gateways on one dashboard: a row for each, in both languages, and in ``tidegate top``."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from e2e.browser import PHONE, browser, dashboard
from e2e.test_replicas import stage
from e2e.test_top import top

pytestmark = [pytest.mark.services, pytest.mark.anyio, pytest.mark.timeout(200)]

GONE = """() => {
    const row = [...document.querySelectorAll("#replicas tbody tr")].find(each => each.textContent.includes("NAME"));
    return row === undefined || row.textContent.includes("lost");
}"""


async def test_each_gateway_has_a_row_on_the_screen_of_each(tmp_path: Path) -> None:
    async with stage(tmp_path) as (pool, _), browser() as opened:
        names = [each.state()["cluster"]["replica"] for each in pool.gateways]
        assert len({*names}) > 1
        for gateway, locale, words, own in (
            (pool.gateways[0], "en-US", "Gateways that share the seats", "this one"),
            (pool.gateways[1], "zh-CN", "共享座位的网关", "本机"),
        ):
            async with dashboard(opened, gateway.control, size=PHONE, locale=locale) as screen:
                rows = screen.page.locator("#replicas tbody tr")
                await screen.shows("#replicas tbody", own)
                assert await rows.count() == len(names)
                assert await screen.page.get_by_text(words).is_visible()
                wide = await screen.page.evaluate("document.documentElement.scrollWidth")
                assert wide <= PHONE[0]
        status, output = await top(pool.gateways[0].control, "--once")
        assert status == 0
        assert f"{names[0]} (this one)" in output
        async with dashboard(opened, pool.gateways[0].control) as screen:
            await screen.shows("#replicas", names[-1])
            pool.gateways[-1].signal(signal.SIGKILL)
            await screen.is_true(GONE.replace("NAME", names[-1]))
