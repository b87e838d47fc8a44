"""The dashboard in a real browser: live, operable by those who may, and honest when it is not live."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from e2e.browser import PHONE, WALL, browser, dashboard, eventually
from e2e.raw import Answer, Upstream, Visit, ask, chat, gateway, until, whole
from tidegate.config import key_digest
from tidegate.testing.gateway_process import GatewayProcess, gateway_process

pytestmark = [pytest.mark.services, pytest.mark.anyio, pytest.mark.timeout(200)]  # 3 to 6 s on a machine at rest

CONFIG = """
models: [{{name: raw, backends: [{{name: b0, url: "{url}", engine: openai, seats: {seats}}}]}}]
policy: {{bands: {{p0: {{ttl: 5min}}, p1: {{ttl: 5min}}}}}}
{more}
"""
ROWS = ", ".join(
    f"{{name: {name}, role: {role}, token: '{key_digest(name + '-token')}'}}"
    for name, role in (("duty", "operator"), ("wall", "viewer"))
)
OPERATORS = f"control: {{operators: [{ROWS}]}}"
WHEN_SHOWN = """wanted => new Promise(done => {
    const shown = () => document.querySelector("#tile-waiting-big").textContent;
    const look = () => shown() === wanted ? done(Date.now()) : setTimeout(look, 10);
    look();
})"""
CUT_OFF = """([wall]) => {
    const cards = [...document.querySelectorAll("#watch .card")];
    const found = cards.filter(card => card.scrollWidth > card.clientWidth + 1);
    const main = document.querySelector("main");
    if (wall && main.scrollHeight > main.clientHeight) found.push(main);
    return found.map(each => each.textContent);
}"""
WRITE_MARKUP = """() => {
    try { document.body.innerHTML = "<b>x</b>"; return "written"; } catch { return "refused"; }
}"""


def config(url: str, *, seats: int = 1, more: str = "") -> str:
    return CONFIG.format(url=url, seats=seats, more=more)


async def hang(_: Visit) -> None:
    await asyncio.sleep(60)


def get(process: GatewayProcess, path: str) -> Any:
    with urllib.request.urlopen(process.control + path, timeout=40) as response:
        return json.load(response)


@contextlib.asynccontextmanager
async def crowd(process: GatewayProcess, **counts: int) -> AsyncIterator[list[asyncio.Task[Answer]]]:
    """So many requests of each band; the first gets the only seat and keeps it."""
    tasks = [
        asyncio.ensure_future(ask(process.url, chat(), headers={"x-tidegate-band": band}))
        for band, count in counts.items()
        for _ in range(count)
    ]
    total = sum(counts.values())
    await until(lambda: process.total("tidegate_queue_depth") == total - 1, within_s=20)
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


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
        shown = await screen.page.locator("#changes table.diff").count()
        assert shown == len(records) >= 3
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


HOSTILE = "<img src=x onerror=globalThis.hacked=1><script>hacked=1</script>"


async def test_hostile_names_are_shown_as_text() -> None:
    names = f"""
models:
  - {{{{name: "{HOSTILE}", backends: [{{{{name: b1, url: "{{url}}", engine: openai, seats: 1}}}}]}}}}
  - {{{{name: other, backends: [{{{{name: b2, url: "{{url}}", engine: openai, seats: 1}}}}]}}}}
"""
    async with (
        Upstream(hang).running() as upstream,
        gateway(names.format(url=upstream.url)) as process,
        browser() as opened,
        dashboard(opened, process.control, complaints=lambda text: "TrustedHTML" in text) as screen,
    ):
        await screen.shows("#pools", HOSTILE)
        await screen.view("knobs")
        await screen.shows("#knobs", HOSTILE)
        assert await screen.page.locator("main img, main script").count() == 0
        assert await screen.page.evaluate("globalThis.hacked === undefined")
        assert screen.complaints == []
        assert await screen.page.evaluate(WRITE_MARKUP) == "refused", "the page's policy forbids markup from strings"


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("language", ["en", "zh"])
async def test_wall_and_phone_fit_in_both_languages_and_themes(language: str, theme: str) -> None:
    async with (
        Upstream(hang).running() as upstream,
        gateway(config(upstream.url)) as process,
        browser() as opened,
        crowd(process, p0=2, p1=3, p2=5),
    ):
        locale = "zh-CN" if language == "zh" else "en-US"
        for size in (WALL, PHONE):
            async with dashboard(opened, process.control, size=size, locale=locale, color_scheme=theme) as screen:
                await screen.shows("#tile-waiting-big", "9")
                assert await screen.page.locator("html").get_attribute("data-theme") == theme
                await screen.shows("#tile-waiting h2", "Waiting" if language == "en" else "排队")
                for view in ("watch", "knobs", "changes"):
                    await screen.view(view)
                    wide = await screen.page.evaluate("document.documentElement.scrollWidth")
                    assert wide <= size[0], f"{view} is wider than the screen"
                await screen.view("watch")
                for selector in ("#switch", "#tile-safe-big", "#tile-refused-big", "#tile-engines-big"):
                    box = await screen.page.locator(selector).bounding_box()
                    assert box is not None
                    assert box["y"] + box["height"] <= size[1], f"{selector} is not on the first screen"
                assert await screen.page.evaluate(CUT_OFF, [size == WALL]) == []


async def test_language_and_theme_are_switched_and_kept() -> None:
    async with (
        Upstream(hang).running() as upstream,
        gateway(config(upstream.url)) as process,
        browser() as opened,
        dashboard(opened, process.control) as screen,
    ):
        await screen.shows("#tile-waiting h2", "Waiting")
        await screen.page.locator("#language").click()
        await screen.shows("#tile-waiting h2", "排队")
        await screen.page.locator("#theme").click()
        await screen.page.reload()
        await screen.shows("#tile-waiting h2", "排队")
        root = screen.page.locator("html")
        assert (await root.get_attribute("lang"), await root.get_attribute("data-theme")) == ("zh-CN", "light")


async def test_the_switch_is_reached_and_pressed_with_the_keyboard_alone() -> None:
    async with (
        Upstream(hang).running() as upstream,
        gateway(config(upstream.url)) as process,
        browser() as opened,
        dashboard(opened, process.control, reduced_motion="reduce") as screen,
    ):
        await screen.is_true("() => document.querySelector('#switch')?.disabled === false")
        keys = screen.page.keyboard
        for _ in range(6):
            await keys.press("Tab")
            if await screen.page.evaluate("document.activeElement.id") == "switch":
                break
        await keys.press("Enter")
        await screen.shows("#effects", "only p0 is let in")
        await keys.press("Escape")
        await screen.page.locator("dialog").wait_for(state="detached")
        assert await screen.page.evaluate("document.activeElement.id") == "switch"
        assert get(process, "/admin/mode")["mode"] == "normal"
        await keys.press("Enter")
        await screen.shows("#effects", "only p0 is let in")
        await keys.press("Enter")  # the confirmation has the focus

        async def switched() -> bool:
            return bool(get(process, "/admin/mode")["mode"] == "transactions_only")

        await eventually(switched)
        moving = "() => document.getAnimations().length"
        assert await screen.page.evaluate(moving) == 0


FIGURES = [
    ("count", None, "–"),
    ("count", 0, "0"),
    ("count", 9999, "9999"),
    ("count", 12345, "12.3k"),
    ("count", 999_960, "1000k"),
    ("count", 2_500_000, "2.5M"),
    ("count", 0.4567, "0.46"),
    ("seconds", None, "–"),
    ("seconds", 0, "0 ms"),
    ("seconds", 0.0004, "<1 ms"),
    ("seconds", 0.0125, "12.5 ms"),
    ("seconds", 1, "1 s"),
    ("seconds", 59.96, "60 s"),
    ("seconds", 600, "10 min"),
    ("seconds", 86400, "24 h"),
    ("seconds", 259200, "3 d"),
    ("countdown", 899.6, "15:00"),
    ("countdown", 3661, "1:01:01"),
    ("percent", 0.666, "67%"),
    ("percent", None, "–"),
]


async def test_figures_are_short_and_have_their_unit() -> None:
    script = """async rows => {
        const figures = await import("/js/figures.js");
        return rows.map(([name, value]) => figures[name](value));
    }"""
    async with (
        Upstream(hang).running() as upstream,
        gateway(config(upstream.url)) as process,
        browser() as opened,
        dashboard(opened, process.control) as screen,
    ):
        found = await screen.page.evaluate(script, [[name, value] for name, value, _ in FIGURES])
        assert found == [wanted for _, _, wanted in FIGURES]
