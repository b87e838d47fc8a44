"""How the dashboard looks and is reached in a real browser: names, languages, themes, screens, keys, figures."""

from __future__ import annotations

import pytest

from e2e.browser import PHONE, WALL, browser, dashboard, eventually
from e2e.dashboard_stage import CUT_OFF, WRITE_MARKUP, config, crowd, get, hang
from e2e.raw import Upstream, gateway

pytestmark = [pytest.mark.services, pytest.mark.anyio, pytest.mark.timeout(200)]  # 3 to 6 s on a machine at rest

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
