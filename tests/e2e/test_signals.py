"""What upstreams say, on real sockets: metrics, quotas, refusals, failures and silence."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from email.utils import formatdate
from pathlib import Path
from time import time

import pytest

from e2e.raw import DONE, Answer, Upstream, Visit, ask, chat, chunk, gateway, until, whole
from tidegate.testing.gateway_process import GatewayProcess

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
BUSY = b'data: {"error":{"message":"The engine is currently busy.","type":"Service Unavailable","code":503}}\n\n'
PAGE = b"""vllm:num_requests_running{engine="0"} %d
vllm:num_requests_waiting{engine="0"} 0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:generation_tokens_total{engine="0"} %d
vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="100"} 1
"""


class Engine(Upstream):
    """An upstream with a metrics page; ``page`` gives its status and text, or never comes back."""

    def __init__(self, behave: Callable[[Visit], Awaitable[None]]) -> None:
        super().__init__(behave)
        self.page: Callable[[], Awaitable[tuple[int, bytes]]] = self.alive
        self.healthy = True
        self.looks = 0

    async def alive(self) -> tuple[int, bytes]:
        return 200, PAGE % (self.open, self.looks)

    async def look(self, visit: Visit) -> None:
        if visit.path == "/metrics":
            self.looks += 1
            status, text = await self.page()
            visit.answer(text, status)
        else:
            visit.answer(b"{}", 200 if self.healthy else 503)


def row(name: str, engine: Upstream, *, kind: str = "vllm", seats: int = 8, extra: str = "") -> str:
    """Give one backend of a settings file."""
    return (
        f'{{name: {name}, url: "{engine.url}", engine: {kind}, seats: {seats}, poll_every: 100ms, '
        f"stale_after: 600ms{extra}}}"
    )


def pools(*models: str, more: str = "") -> str:
    """Give a settings file; each model is the text of its backends, and the models are ``raw0``, ``raw1``, …"""
    rows = "".join(f"  - {{name: raw{number}, backends: [{text}]}}\n" for number, text in enumerate(models))
    return f"models:\n{rows}policy: {{bands: {{p0: {{reserve: 0}}}}}}\n{more}"


def config(*engines: Upstream, more: str = "", backend: str = "", kind: str = "vllm") -> str:
    """Give a settings file with one model ``raw`` of all engines, ``b0``, ``b1``, …"""
    rows = [row(f"b{number}", engine, kind=kind, extra=backend) for number, engine in enumerate(engines)]
    return pools(", ".join(rows), more=more).replace("name: raw0", "name: raw")


def alone(engines: Sequence[Upstream]) -> str:
    """Give a settings file with a model for each engine: ``raw0`` on ``b0``, …"""
    return pools(*[row(f"b{number}", engine) for number, engine in enumerate(engines)])


@contextlib.asynccontextmanager
async def all_running(engines: Sequence[Upstream]) -> AsyncIterator[None]:
    """Run engines."""
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine.running())
        yield


async def serve(visit: Visit) -> None:
    visit.answer(whole())


async def serve_slowly(visit: Visit) -> None:
    await asyncio.sleep(0.25)
    visit.answer(whole())


def shown(process: GatewayProcess, name: str, backend: str = "b0") -> float:
    return process.metrics()[f'{name}{{backend="{backend}"}}']


# Metrics


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


async def test_an_error_within_a_stream_is_retried_as_long_as_nothing_was_said() -> None:
    """vLLM refuses a burst of streams inside 200 answers."""
    starts = (BUSY + DONE, ROLE + BUSY, ROLE, b"")

    def refuses(start: bytes) -> Engine:
        async def refuse(visit: Visit) -> None:
            visit.start_stream()
            visit.send(start)

        return Engine(refuse)

    async def stream(visit: Visit) -> None:
        visit.start_stream()
        visit.send(ROLE + chunk("word") + chunk("", "stop") + DONE)

    bad, good = [refuses(start) for start in starts], [Engine(stream) for _ in starts]
    async with all_running([*bad, *good]):
        rows = [f"{row(f'x{n}', bad[n])}, {row(f'y{n}', good[n])}" for n in range(len(starts))]
        async with gateway(pools(*rows)) as process:
            bodies = [{**chat(stream=True), "model": f"raw{n}"} for n in range(len(starts))] * 8
            answers = await asyncio.gather(*[ask(process.url, body) for body in bodies])
            whole_stream = ROLE + chunk("word") + chunk("", "stop") + DONE
            assert {(answer.status, answer.body) for answer in answers} == {(200, whole_stream)}
            assert all(engine.visits for engine in bad)
            assert [len(engine.visits) for engine in good] == [8] * len(starts)
            assert process.total("tidegate_requests_total", outcome="completed") == len(bodies)
            assert process.total("tidegate_running") == 0


async def test_without_another_backend_the_engines_own_error_is_passed_on() -> None:
    async def refuse(visit: Visit) -> None:
        visit.start_stream()
        visit.send(BUSY + DONE)

    engine = Engine(refuse)
    async with engine.running(), gateway(config(engine)) as process:
        answer = await ask(process.url, chat(stream=True))
        assert answer.body == BUSY + DONE
        assert process.total("tidegate_requests_total", outcome="failed") == 1
        assert len(engine.visits) == 1


async def test_each_backend_is_tried_once() -> None:
    async def busy(visit: Visit) -> None:
        visit.answer(b'{"error":{"message":"busy"}}', 503)

    engines = [Engine(busy) for _ in range(3)]
    async with all_running(engines), gateway(config(*engines)) as process:
        answer = await ask(process.url, chat())
        assert (answer.status, answer.error["message"]) == (503, "busy")
        assert [len(engine.visits) for engine in engines] == [1, 1, 1]
        assert process.total("tidegate_requests_total") == 1
        assert process.total("tidegate_requests_total", outcome="failed") == 1


async def test_a_backend_that_fails_again_and_again_is_left_alone_until_it_passes_a_trial() -> None:
    broken = True

    async def maybe(visit: Visit) -> None:
        visit.answer(b"{}", 503) if broken else visit.answer(whole())

    bad, good = Engine(maybe), Engine(serve)
    async with bad.running(), good.running(), gateway(config(bad, good)) as process:
        async with asyncio.timeout(40):
            while shown(process, "tidegate_backend_up"):
                assert (await ask(process.url, chat())).status == 200
        assert shown(process, "tidegate_backend_up", "b1") == 1
        before = len(bad.visits)
        assert before == 3
        await until(lambda: shown(process, "tidegate_backend_up") == 1, within_s=4)
        assert shown(process, "tidegate_seats") == 1
        async with asyncio.timeout(40):  # the trial fails
            while shown(process, "tidegate_backend_up"):
                assert (await ask(process.url, chat())).status == 200
        assert len(bad.visits) == before + 1
        broken = False
        async with asyncio.timeout(40):
            while shown(process, "tidegate_seats") != 8:
                assert (await ask(process.url, chat())).status == 200
                await asyncio.sleep(0.05)
        assert shown(process, "tidegate_backend_up") == 1


async def test_a_dead_backend_costs_no_request() -> None:
    one, two = Engine(serve), Engine(serve)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(two.running())
        mortal = await stack.enter_async_context(contextlib.AsyncExitStack())
        await mortal.enter_async_context(one.running())
        port = int(one.url.rpartition(":")[2])
        process = await stack.enter_async_context(gateway(config(one, two)))
        assert (await ask(process.url, chat())).status == 200
        await mortal.aclose()
        answers = [await ask(process.url, chat()) for _ in range(20)]
        assert {answer.status for answer in answers} == {200}
        assert shown(process, "tidegate_backend_up") == 0
        await stack.enter_async_context(one.running(port))
        await until(lambda: shown(process, "tidegate_backend_up") == 1, within_s=4)


async def test_a_stream_that_falls_silent_ends_when_its_backend_is_gone_and_not_before() -> None:
    """vLLM on SIGTERM closes its listening socket and leaves open streams without a byte."""

    async def fall_silent(visit: Visit) -> None:
        visit.start_stream()
        visit.send(chunk("one"))
        await asyncio.sleep(60)

    engine = Engine(fall_silent)
    more = "gateway: {silence_timeout: 1s}\n"
    async with engine.running(), gateway(config(engine, more=more)) as process:
        request = asyncio.ensure_future(ask(process.url, chat(stream=True)))
        await asyncio.sleep(3.5)
        assert not request.done()
        engine.healthy = False
        began = asyncio.get_running_loop().time()
        answer = await request
        assert asyncio.get_running_loop().time() - began < 20
        assert answer.body.startswith(chunk("one"))
        assert answer.body.count(b'"code":"upstream_timeout"') == 1
        assert b"[DONE]" not in answer.body
        assert process.total("tidegate_running") == 0


async def test_requests_that_begin_alike_go_to_one_backend() -> None:
    engines = [Engine(serve) for _ in range(2)]
    async with engines[0].running(), engines[1].running(), gateway(config(*engines)) as process:
        for system in ("you are a shop " * 200, "you are a bank " * 200, "you are a guide " * 200):
            before = [len(engine.visits) for engine in engines]
            messages = [{"role": "system", "content": system}, {"role": "user", "content": "hi"}]
            for _ in range(6):
                assert (await ask(process.url, {"model": "raw", "messages": messages})).status == 200
            after = [len(engine.visits) for engine in engines]
            assert sorted(now - then for then, now in zip(before, after, strict=True)) == [0, 6]


async def test_llamacpp_gets_no_more_than_its_slots_and_shows_them() -> None:
    class Slots(Engine):
        async def look(self, visit: Visit) -> None:
            if visit.path == "/slots":
                visit.answer(b'[{"id":0,"n_ctx":64,"is_processing":false},{"id":1,"n_ctx":64,"is_processing":true}]')
            elif visit.path == "/metrics":
                visit.answer(b'{"error":{"code":501}}', 501)
            else:
                await super().look(visit)

    engine = Slots(serve_slowly)
    async with engine.running(), gateway(config(engine, kind="llamacpp")) as process:
        await until(lambda: shown(process, "tidegate_seats") == 2, within_s=3)
        answers = await asyncio.gather(*[ask(process.url, chat()) for _ in range(8)])
        assert {answer.status for answer in answers} == {200}
        assert engine.most == 2
        await until(lambda: shown(process, "tidegate_backend_stale") == 0, within_s=3)


# TLS


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for 127.0.0.1 that signs itself."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=engine"]
    subprocess.run([*command, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    return cert, key


async def test_an_https_backend_is_trusted_by_its_own_certificate_only(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    engine = Engine(serve)
    server = await asyncio.start_server(engine._serve, "127.0.0.1", 0, ssl=context)
    engine.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        for backend, status in ((f', tls: {{ca: "{cert}"}}', 200), (", tls: {verify: false}", 200), ("", 503)):
            async with gateway(config(engine, backend=backend)) as process:
                answer = await ask(process.url, chat())
                assert answer.status == status
                if status == 200:
                    await until(lambda: shown(process, "tidegate_backend_kv_free_ratio") == 0.75, within_s=3)
