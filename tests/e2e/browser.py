"""A real Chromium, and what holds for every page of the dashboard: no error in its console, no word to another host."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

WALL = (1920, 1080)
PHONE = (390, 844)
NAMES = ("chromium", "chromium-browser", "google-chrome")
GIVE_UP_MS = 60_000
LONGEST_S, CLOSE_S = 150.0, 10.0


def chromium() -> str:
    """Path of the browser; without one the test is skipped."""
    path = os.environ.get("TIDEGATE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium here: scripts/install_chromium.sh installs it, or TIDEGATE_CHROMIUM names one")
    return path


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """Run one without a screen."""
    path = chromium()
    api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
    manager, others = api.async_playwright(), _children()
    play = await manager.__aenter__()
    driver = _children() - others
    try:
        opened = await play.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            async with asyncio.timeout(LONGEST_S):  # before pytest's own, from which the driver does not recover
                yield opened
        finally:
            await _within(opened.close())
    finally:
        if not await _within(manager.__aexit__()):
            for pid in driver:
                os.kill(pid, signal.SIGKILL)


def _children() -> set[int]:
    """Processes that this one has begun."""
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


async def _within(closing: Awaitable[None]) -> bool:
    """Wait for something to close, but not for ever; return whether it did."""
    try:
        await asyncio.wait_for(closing, CLOSE_S)
    except TimeoutError:
        return False
    return True


class Screen:
    """One open dashboard.

    Attributes:
        page: to look at and to press.
        complaints: errors and warnings of its console, and exceptions of its scripts.
        hosts: whom it spoke to.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.hosts: set[str] = set()
        page.on("console", lambda message: self._complain(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))

    def _complain(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    async def text(self, selector: str) -> str:
        """Text of one element."""
        return await self.page.locator(selector).inner_text(timeout=GIVE_UP_MS)

    async def shows(self, selector: str, wanted: str, *, within_ms: float = GIVE_UP_MS) -> None:
        """Wait until an element that can be seen has ``wanted`` somewhere in its text."""
        script = """([selector, wanted]) => {
            const element = document.querySelector(selector);
            return element !== null && element.checkVisibility() && element.textContent.includes(wanted);
        }"""
        await self.page.wait_for_function(script, arg=[selector, wanted], timeout=within_ms)

    async def is_true(self, script: str, *, within_ms: float = GIVE_UP_MS) -> None:
        """Wait until a script of the page says so."""
        await self.page.wait_for_function(script, timeout=within_ms)

    async def view(self, name: str) -> None:
        """Go to one of the views."""
        await self.page.locator(f"[data-view={name}]").click()
        await self.page.locator(f"#{name}").wait_for(state="visible")

    async def sign_in(self, token: str) -> None:
        """Show a token, and wait until the page knows whose it is."""
        await self.page.locator("#who").click()
        await self.page.locator("#token").fill(token)
        await self.page.keyboard.press("Enter")
        await self.page.locator("dialog").wait_for(state="detached")


@contextlib.asynccontextmanager
async def dashboard(
    opened: Browser,
    url: str,
    *,
    size: tuple[int, int] = WALL,
    complaints: Callable[[str], bool] = lambda _: False,
    **context: Any,
) -> AsyncIterator[Screen]:
    """Open the dashboard; at the end its console must be clean and it must have spoken to nobody else.

    Args:
        opened: the browser.
        url: of the control port.
        size: of the screen.
        complaints: which complaints of the console are part of the story.
        context: options of the browser's context.
    """
    viewport: Any = {"width": size[0], "height": size[1]}
    inside = await opened.new_context(viewport=viewport, **{"locale": "en-US", "color_scheme": "dark", **context})
    inside.set_default_timeout(GIVE_UP_MS)
    screen = Screen(await inside.new_page())
    try:
        await screen.page.goto(f"{url}/")
        yield screen
        assert [text for text in screen.complaints if not complaints(text)] == []
        assert screen.hosts == {urlsplit(url).netloc}
    finally:
        await _within(inside.close())


async def eventually(true: Callable[[], Awaitable[bool]], *, within_s: float = 20.0) -> None:
    """Wait until ``true`` says so."""
    async with asyncio.timeout(within_s):
        while not await true():  # noqa: ASYNC110 - what is waited for is in other processes
            await asyncio.sleep(0.05)
