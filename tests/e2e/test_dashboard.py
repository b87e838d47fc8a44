"""The dashboard in a real browser: live, operable by those who may, and honest when it is not live."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from e2e.browser import PHONE, browser, dashboard
from e2e.dashboard_stage import OPERATORS, WHEN_SHOWN, config, crowd, get, hang
from e2e.raw import Upstream, Visit, ask, chat, gateway, whole
from tidegate.testing.gateway_process import gateway_process

pytestmark = [pytest.mark.services, pytest.mark.anyio, pytest.mark.timeout(200)]  # 3 to 6 s on a machine at rest


async def test_the_page_follows_the_load_within_a_second() -> None:
    async with (
        Upstream(hang).running() as upstream,
        gateway(config(upstream.url)) as process,
        browser() as opened,
        dashboard(opened, process.control) as screen,
    ):
        await screen.shows("#tile-waiting-big", "0")
        await screen.shows("#pulse", "live")
        delays = []
        for count in (3, 5, 8):
            seen = asyncio.ensure_future(screen.page.evaluate(WHEN_SHOWN, str(count - 1)))
            sent = time.time()
            async with crowd(process, p2=count):
                delays.append(await asyncio.wait_for(seen, 30) / 1000 - sent)
            await screen.shows("#tile-waiting-big", "0")
        assert min(delays) < 1.0, delays
        assert await screen.text("[data-band=p2] [data-key=depth]") == "0"


async def test_the_switch_says_what_will_happen_does_it_and_every_screen_tells() -> None:
    async with (
        Upstream(hang).running() as upstream,
        gateway(config(upstream.url)) as process,
        browser() as opened,
        dashboard(opened, process.control) as screen,
        dashboard(opened, process.control, size=PHONE, locale="zh-CN") as phone,
        crowd(process, p0=1, p1=3, p2=4) as tasks,
    ):
        await screen.shows("#tile-waiting-big", "7")
        await screen.page.locator("#switch").click()
        await screen.shows("#effects", "7 waiting requests (p1 3, p2 4)")
        await screen.shows("#effects", "only p0 is let in")
        await screen.page.locator("input[name=revert][value='15min']").check()
        await screen.page.locator("#confirm").click()
        answers = [await asyncio.wait_for(task, 20) for task in tasks[1:]]
        assert all(b"load_shedding_fallback" in answer.body for answer in answers)
        assert (len(answers), tasks[0].done()) == (7, False)
        for each, words in ((screen, "back to normal in 14:"), (phone, "14:")):
            await each.shows("#mode", "transactions_only")
            await each.shows("#mode", words)
        fallback = await ask(process.url, chat(), headers={"x-tidegate-band": "p2"})
        assert (fallback.status, b"load_shedding_fallback" in fallback.body) == (200, True)
        await screen.shows("#refusals", "shed")
        await screen.shows("[data-band=p2] td.name", "mode")
        mode = get(process, "/admin/mode")
        assert (mode["mode"], mode["reverts_to"]) == ("transactions_only", "normal")
        await phone.page.evaluate("window.scrollTo(0, 10000)")
        await phone.is_true(
            "() => window.scrollY > 500 && document.querySelector('#mode').getBoundingClientRect().top >= 0"
        )
        await phone.page.locator("#back").click()
        await phone.page.locator("#confirm").click()
        await screen.is_true("() => document.querySelector('#mode').hidden")
        assert get(process, "/admin/mode")["mode"] == "normal"


async def test_every_mode_of_the_settings_can_be_switched_on() -> None:
    more = "modes: {night: {policy: {bands: {p2: {ceiling: 0.5}}}}}"
    async with (
        Upstream(hang).running() as upstream,
        gateway(config(upstream.url, more=more)) as process,
        browser() as opened,
        dashboard(opened, process.control) as screen,
    ):
        for name, words in (("observe", "nothing is refused"), ("night", "laid over the policy")):
            await screen.page.locator("#other-modes").click()
            await screen.page.locator("dialog").get_by_role("button", name=name).click()
            await screen.shows("#effects", words)
            await screen.page.locator("#confirm").click()
            await screen.shows("#mode", name)
            assert get(process, "/admin/mode")["mode"] == name


async def test_a_wrong_knob_is_refused_at_its_field_and_a_right_one_applied_and_undone() -> None:
    async with (
        Upstream(hang).running() as upstream,
        gateway(config(upstream.url, seats=4)) as process,
        browser() as opened,
        dashboard(opened, process.control, complaints=lambda text: "400" in text) as screen,
    ):
        before = get(process, "/admin/policy")
        await screen.view("knobs")
        floor = screen.page.locator("[name='policy.bands.p2.floor']")
        error = "[id='knob-policy.bands.p2.floor-error']"
        await floor.fill("1.5")
        await screen.shows(error, "expected a part from 0 to 1")
        assert await floor.get_attribute("aria-invalid") == "true"
        await screen.page.locator("#apply").click()
        await screen.shows(error, "expected a part from 0 to 1")
        assert get(process, "/admin/policy") == before
        async with dashboard(opened, process.control, locale="zh-CN") as chinese:
            await chinese.view("knobs")
            await chinese.page.locator("[name='policy.bands.p2.floor']").fill("1.5")
            await chinese.shows(error, "应为 0 到 1 的比例，如 0.05，收到 '1.5'")
        await floor.fill("0.1")
        await screen.shows("#preview", "0.05 → 0.1")
        await screen.shows("#bounds", "p2")
        assert await screen.text(error) == ""
        await screen.page.locator("[name='models[0].backends[0].seats']").fill("6")
        await screen.page.locator("#apply").click()
        await screen.shows("#toast", "Applied")
        assert get(process, "/admin/policy")["bands"]["p2"]["floor"] == 0.1
        assert get(process, "/admin/backends")["models"][0]["backends"][0]["seats"] == 6
        await screen.view("changes")
        await screen.shows("#changes tbody tr:nth-child(2)", "policy.bands.p2.floor")
        for row in (2, 2):  # the policy, then the seats, which stand second now
            await screen.page.locator(f"#changes tbody > tr:nth-child({row}) .undo").first.click()
            await screen.page.locator("#confirm").click()
            await screen.shows("#toast", "Undone")
            await screen.page.locator("dialog").wait_for(state="detached")
            await screen.page.evaluate("document.querySelector('#toast').textContent = ''")
        assert get(process, "/admin/policy") == before
        records = get(process, "/admin/audit")["records"]
        assert len(records) >= 3
        shown = screen.page.locator("#changes table.diff")
        await shown.nth(len(records) - 1).wait_for()  # the list is read again after what is told
        assert await shown.count() == len(records)
        for record in records:
            for change in record["changes"]:
                await screen.shows("#changes", change["what"])


AS_QUICK_AS_OTHERS = """
import sys
if "serve" in sys.orig_argv:
    from tidegate.control import child
    child.LEAST_PRIORITY, child.TIMEOUT_S = 0, 150.0
"""
"""A child of the lowest priority takes too long on a machine that does much else; here it is the page that counts."""


async def test_what_if_shows_the_last_minute_under_both_policies(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(AS_QUICK_AS_OTHERS)
    environ = {"PYTHONPATH": os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))}

    async def at_once(visit: Visit) -> None:
        visit.answer(whole())

    async with (
        Upstream(at_once).running() as upstream,
        gateway(config(upstream.url, seats=4), environ=environ) as process,
        browser() as opened,
        dashboard(opened, process.control) as screen,
    ):
        await screen.view("knobs")
        await screen.page.locator("[name='policy.bands.p1.weight']").fill("30")
        await screen.shows("#preview", "20 → 30")
        for _ in range(3):
            assert (await ask(process.url, chat(), headers={"x-tidegate-band": "p1"})).status == 200
        await screen.page.locator("#what-if").click()
        await screen.shows("#what-if-result", "3 requests", within_ms=120_000)
        await screen.shows("#what-if-result", "wait p99")
        assert get(process, "/admin/policy")["bands"]["p1"]["weight"] == 20, "nothing has changed"


async def test_a_viewer_sees_all_and_operates_nothing() -> None:
    async with (
        Upstream(hang).running() as upstream,
        gateway(config(upstream.url, more=OPERATORS)) as process,
        browser() as opened,
        dashboard(opened, process.control, complaints=lambda text: "401" in text) as screen,
        crowd(process, p1=3),
    ):
        await screen.shows("#tile-waiting-big", "2")
        await screen.shows("#switch-why", "sign in")
        await screen.page.locator("#who").click()
        await screen.page.locator("#token").fill("nobody's")
        await screen.page.keyboard.press("Enter")
        await screen.shows("dialog", "This token is nobody's")
        await screen.page.locator("#token").fill("wall-token")
        await screen.page.keyboard.press("Enter")
        await screen.shows("#who", "Sign out wall")
        await screen.shows("#switch-why", "viewer's token")
        await screen.shows("#tile-waiting-big", "2")
        assert await screen.page.locator("#switch").is_disabled()
        assert await screen.page.locator("#other-modes").is_disabled()
        await screen.view("knobs")
        await screen.shows("#knobs-why", "viewer's token")
        assert await screen.page.locator("#knobs .knob:enabled").count() == 0
        await screen.page.locator("#who").click()
        await screen.shows("#who", "Sign in")
        await screen.sign_in("duty-token")
        await screen.shows("#who", "Sign out duty")
        await screen.is_true("() => !document.querySelector('#switch').disabled")
        await screen.is_true("() => document.querySelectorAll('#knobs .knob:enabled').length > 10")


async def test_a_screen_without_live_numbers_says_so_and_comes_back_by_itself() -> None:
    async with Upstream(hang).running() as upstream, browser() as opened:
        text = config(upstream.url)
        with gateway_process(config=text) as process:
            control = process.control
            async with dashboard(opened, control, complaints=lambda text: "ERR_" in text) as screen:
                await screen.shows("#pulse", "live")
                process.signal(signal.SIGSTOP)
                await screen.shows("#stale", "not live")
                assert "old" in str(await screen.page.locator("body").get_attribute("class"))
                assert await screen.page.locator("#stale").is_visible()
                process.signal(signal.SIGCONT)
                await screen.is_true("() => document.querySelector('#stale').hidden")
                await screen.shows("#pulse", "live")
                process.signal(signal.SIGKILL)
                process.wait(5)
                await screen.shows("#stale", "trying to connect again")
                with gateway_process("--control-listen", control.removeprefix("http://"), config=text):
                    await screen.is_true("() => document.querySelector('#stale').hidden")
                    await screen.shows("#pulse", "live")
