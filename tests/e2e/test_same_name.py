"""Two gateways that were given one name, one with other seats in its file: said by both, and on the dashboard."""

from __future__ import annotations

import contextlib
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.browser import PHONE, browser, chromium, dashboard
from tidegate.testing.counting_engine import counting_engine
from tidegate.testing.gateway_process import GatewayProcess, gateway_process
from tidegate.testing.valkey import valkey_process

pytestmark = [pytest.mark.services, pytest.mark.anyio, pytest.mark.timeout(120)]


def until(say: Callable[[], bool], seconds: float = 40.0) -> None:
    end = time.monotonic() + seconds
    while not say():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.2)


def metric(gateway: GatewayProcess, name: str) -> float:
    with urllib.request.urlopen(gateway.control + "/metrics", timeout=40) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def differs(gateway: GatewayProcess) -> bool:
    return gateway.state()["cluster"]["pools"]["raw"]["differs"] is not None


@contextlib.contextmanager
def pair(folder: Path) -> Iterator[tuple[GatewayProcess, GatewayProcess, contextlib.ExitStack]]:
    """The one whose file is not in force, the other, and what ends the latter."""
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(valkey_process())
        engine = stack.enter_context(counting_engine(folder / "asked"))

        def config(seats: int) -> str:
            backend = f'{{name: b, url: "{engine.url}", engine: openai, seats: {seats}}}'
            cluster = f'cluster: {{store: "valkey://127.0.0.1:{store.port}", replica: gw}}\n'
            return f"models: [{{name: raw, backends: [{backend}]}}]\n{cluster}"

        one = stack.enter_context(gateway_process(config=config(8)))
        ending = stack.enter_context(contextlib.ExitStack())
        two = ending.enter_context(gateway_process(config=config(4)))
        until(lambda: all(metric(each, "tidegate_same_name") == 1 for each in (one, two)))
        until(lambda: differs(one))
        yield one, two, ending


async def test_both_say_so_until_one_is_gone(tmp_path: Path) -> None:
    with pair(tmp_path) as (one, two, ending):
        for each in (one, two):
            state = each.state()["cluster"]
            assert state["same_name"] == 1
            rows = state["pools"]["raw"]["replicas"]
            assert [(row["name"], row["same_name"]) for row in rows] == [("gw", True)] * 2
            assert sorted(row["differs"] for row in rows) == [False, True]
        assert (metric(one, "tidegate_other_backends"), metric(two, "tidegate_other_backends")) == (1, 0)
        ending.close()
        until(lambda: metric(one, "tidegate_same_name") == 0)


async def test_the_dashboard_says_so_in_both_languages(tmp_path: Path) -> None:
    chromium()
    with pair(tmp_path) as (one, _, _):
        async with browser() as opened:
            for locale, same, backends in (
                ("en-US", "two living gateways have one name", "other seats for b"),
                ("zh-CN", "有两个存活的网关同名", "b 的座位数不同"),
            ):
                async with dashboard(opened, one.control, size=PHONE, locale=locale) as screen:
                    await screen.shows("#replicas-same-name", same)
                    await screen.shows("#replicas .replicas-differ", backends)
                    wide = await screen.page.evaluate("document.documentElement.scrollWidth")
                    assert wide <= PHONE[0]
