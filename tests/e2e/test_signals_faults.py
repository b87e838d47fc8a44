"""Upstreams that fail, on real sockets: errors, deaths, silence; and who is trusted, and who serves what."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from pathlib import Path

import pytest

from e2e.raw import DONE, Visit, ask, chat, chunk, gateway, until, whole
from e2e.signals_stage import BUSY, ROLE, Engine, all_running, config, pools, row, serve, serve_slowly, shown

pytestmark = [pytest.mark.slow, pytest.mark.anyio]


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
