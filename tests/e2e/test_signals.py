"""What upstreams say of themselves, on real sockets: metrics pages, quotas and refusals."""

from __future__ import annotations

import asyncio
from email.utils import formatdate
from time import time

import pytest

from e2e.raw import Answer, Visit, ask, chat, gateway, until, whole
from e2e.signals_stage import PAGE, Engine, all_running, alone, config, serve, serve_slowly, shown
from tidegate.testing.gateway_process import GatewayProcess

pytestmark = [pytest.mark.slow, pytest.mark.anyio]


async def never() -> tuple[int, bytes]:
    await asyncio.sleep(60)
    return 500, b""


async def fails() -> tuple[int, bytes]:
    return 500, b"no"


async def stands_still() -> tuple[int, bytes]:
    return 200, PAGE % (1, 7)


async def is_another() -> tuple[int, bytes]:
    return 200, b"<html>"


PAGES = (never, fails, stands_still, is_another)


@pytest.mark.parametrize("from_the_start", [True, False])
async def test_traffic_flows_whatever_the_metrics_page_does(from_the_start: bool) -> None:
    """Four models, each with an engine whose page goes wrong in its own way."""
    engines = [Engine(serve_slowly) for _ in PAGES]
    numbers = range(len(PAGES))

    def go_wrong() -> None:
        for engine, page in zip(engines, PAGES, strict=True):
            engine.page = page

    if from_the_start:
        go_wrong()
    async with all_running(engines), gateway(alone(engines)) as process:

        def stale() -> list[float]:
            return [shown(process, "tidegate_backend_stale", f"b{number}") for number in numbers]

        if not from_the_start:
            await until(lambda: process.total("tidegate_backend_kv_free_ratio") == 4 * 0.75, within_s=3)
            await until(lambda: stale() == [0.0] * 4, within_s=3)
            go_wrong()
        answers: list[Answer] = []
        async with asyncio.timeout(30):
            while stale() != [1.0] * 4 or not answers:
                requests = [ask(process.url, {**chat(), "model": f"raw{number}"}) for number in numbers]
                answers += await asyncio.gather(*requests, *[ask(process.url, {**chat(), "model": "raw2"})])
        assert {answer.status for answer in answers} == {200}
        for engine in engines:
            engine.page = engine.alive
        await until(lambda: stale() == [0.0] * 4, within_s=4)
        await until(lambda: process.total("tidegate_backend_up") == 4, within_s=4)


async def test_a_backend_without_a_page_is_never_stale() -> None:
    engine = Engine(serve)
    async with engine.running(), gateway(config(engine, backend=", metrics_url: off")) as process:
        await asyncio.sleep(1)
        assert (await ask(process.url, chat())).status == 200
        assert shown(process, "tidegate_backend_stale") == 0
        assert engine.looks == 0


async def test_a_credential_goes_to_no_other_place() -> None:
    seen: list[dict[str, str]] = []

    class Noting(Engine):
        async def look(self, visit: Visit) -> None:
            if visit.path == "/metrics":
                seen.append(visit.headers)
            await super().look(visit)

    ours, other = Noting(serve), Noting(serve)
    async with ours.running(), other.running():
        for url, sent in ((ours.url, True), (other.url, False)):
            seen.clear()
            backend = f', metrics_url: "{url}/metrics", api_key: k'
            async with gateway(config(ours, backend=backend)):
                await until(lambda: len(seen) > 2, within_s=3)
                assert all(("authorization" in headers) is sent for headers in seen)


# Quotas


FORMS = [(form, stream) for form in ("ms", "seconds", "date") for stream in (False, True)]


def come_back(form: str, seconds: int) -> bytes:
    """Give the header of a 429 that says when to come back."""
    date = formatdate(int(time()) + seconds + 1, usegmt=True)
    said = {"ms": f"retry-after-ms: {seconds}000", "seconds": f"retry-after: {seconds}", "date": f"retry-after: {date}"}
    return f"{said[form]}\r\n".encode()


class Busy(Engine):
    """Answers the first requests with 429."""

    def __init__(self, form: str, *, seconds: int, times: int) -> None:
        super().__init__(self._behave)
        self.form, self.seconds, self.times = form, seconds, times
        self.came: list[float] = []

    async def _behave(self, visit: Visit) -> None:
        self.came.append(asyncio.get_running_loop().time())
        if len(self.came) > self.times:
            visit.answer(whole())
        else:
            visit.answer(b'{"error":{"message":"slow down"}}', 429, more=come_back(self.form, self.seconds))


async def test_who_meets_a_429_waits_in_its_place_and_so_does_everybody() -> None:
    engines = [Busy(form, seconds=1, times=1) for form, _ in FORMS]

    async def meet(process: GatewayProcess, number: int) -> None:
        engine, (_, stream) = engines[number], FORMS[number]
        body = {**chat(stream=stream), "model": f"raw{number}"}
        first = asyncio.ensure_future(ask(process.url, body, headers={"x-tidegate-band": "p2"}))
        await until(lambda: len(engine.came) == 1, within_s=3)
        await asyncio.sleep(0.1)
        second = asyncio.ensure_future(ask(process.url, body, headers={"x-tidegate-band": "p0"}))
        assert {(await first).status, (await second).status} == {200}
        assert 0.9 <= engine.came[1] - engine.came[0] <= 15
        assert len(engine.came) == 3

    async with all_running(engines), gateway(alone(engines)) as process:
        await asyncio.gather(*[meet(process, number) for number in range(len(FORMS))])
        assert process.total("tidegate_requests_total") == 2 * len(FORMS)
        assert process.total("tidegate_requests_total", outcome="completed") == 2 * len(FORMS)
        assert process.total("tidegate_running") == 0


async def test_who_will_not_wait_so_long_is_told_at_once() -> None:
    engines = [Busy(form, seconds=7, times=9) for form, _ in FORMS]

    async def meet(process: GatewayProcess, number: int) -> None:
        engine, (_, stream) = engines[number], FORMS[number]
        loop = asyncio.get_running_loop()
        headers = {"x-stainless-read-timeout": "5", "x-tidegate-band": "p0"}
        began = loop.time()
        answer = await ask(process.url, {**chat(stream=stream), "model": f"raw{number}"}, headers=headers)
        assert loop.time() - began < 5, "the time that the client would wait"
        assert (answer.status, answer.error["code"]) == (429, "upstream_busy")
        # A date comes nearer on its way.
        assert (3 if engine.form == "date" else 7) <= int(answer.headers["retry-after"]) <= 11
        assert len(engine.came) == 1

    async with all_running(engines), gateway(alone(engines)) as process:
        await asyncio.gather(*[meet(process, number) for number in range(len(FORMS))])
        assert process.total("tidegate_refusals_total", reason="upstream_busy") == len(FORMS)


async def test_a_paused_backend_leaves_its_work_to_the_other() -> None:
    async def busy(visit: Visit) -> None:
        visit.answer(b"{}", 429, more=b"retry-after: 30\r\n")

    paused, free = Engine(busy), Engine(serve)
    async with paused.running(), free.running(), gateway(config(paused, free)) as process:
        answers = [await ask(process.url, chat()) for _ in range(10)]
        assert {answer.status for answer in answers} == {200}
        assert len(paused.visits) <= 1
        assert len(free.visits) == 10


async def test_a_quota_that_is_used_up_is_believed_before_it_is_met() -> None:
    times: list[float] = []

    async def say(visit: Visit) -> None:
        times.append(asyncio.get_running_loop().time())
        visit.answer(whole(), more=b"x-ratelimit-remaining-requests: 0\r\nx-ratelimit-reset-requests: 3s\r\n")

    engine = Engine(say)
    backend = ", budget: {requests_per_minute: 100}"
    async with engine.running(), gateway(config(engine, backend=backend, kind="openai")) as process:
        assert shown(process, "tidegate_budget_level") == 1.0
        assert (await ask(process.url, chat())).status == 200
        assert shown(process, "tidegate_budget_level") == 0.0
        assert (await ask(process.url, chat())).status == 200
        assert 2.8 <= times[1] - times[0] <= 15


async def test_a_429_that_no_waiting_helps_goes_to_the_client() -> None:
    async def poor(visit: Visit) -> None:
        visit.answer(b'{"error":{"message":"pay","type":"insufficient_quota","code":"insufficient_quota"}}', 429)

    engine = Engine(poor)
    async with engine.running(), gateway(config(engine)) as process:
        answer = await ask(process.url, chat())
        assert (answer.status, answer.error["code"]) == (429, "insufficient_quota")


# Failures
