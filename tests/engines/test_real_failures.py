"""Engines that fail: each client is told exactly once, the gateway counts it, and no seat is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from e2e.client_cases import KEY, Target, eventually
from engines.servers import (
    ENGINE_TEST,
    VLLM_MOST,
    ask,
    behind_gateway,
    error_events,
    llama_server,
    open_stream,
    vllm_server,
)
from tidegate.testing.engines import EngineServer
from tidegate.testing.gateway_process import gateway_process
from tidegate.testing.real_engines import MODEL

pytestmark = ENGINE_TEST


async def test_hundreds_of_requests_after_streams_of_llama_cpp_lose_no_connection(fast_llama_target: Target) -> None:
    """llama.cpp announces keep-alive and closes the socket after a stream; a pool that believes it fails often."""
    target = fast_llama_target
    async with target.many() as client:

        async def in_turn(worker: int) -> list[str]:
            ends = []
            for number in range(80):
                if (worker + number) % 2:
                    ends.append(str((await ask(client, tokens=4)).error or "ok"))
                else:
                    plain = await client.chat.completions.create(
                        model=MODEL, messages=[{"role": "user", "content": "tide"}], max_tokens=4
                    )
                    ends.append("ok" if plain.choices else "empty")
            return ends

        ends = await asyncio.gather(*(in_turn(worker) for worker in range(4)))
    assert {end for row in ends for end in row} == {"ok"}
    assert target.gateway.total("tidegate_requests_total", outcome="failed") == 0


async def test_a_full_context_of_llama_cpp_is_seen_inside_its_streams(logs: Path) -> None:
    """With a shared cache llama.cpp fails the whole batch, each with an error in a stream of status 200.

    The gateway is told that this is some OpenAI engine, so that no knowledge of llama.cpp keeps it from happening.
    """
    with (
        llama_server(logs / "llama-kvu", model="tiny", slots=8, context=1024, more=("-kvu",)) as engine,
        behind_gateway(engine, seats=8, kind="openai") as target,
    ):
        async with target.many() as client:
            answers = await asyncio.gather(*(ask(client, tokens=300) for _ in range(8)))
            failed = [answer for answer in answers if answer.error]
            assert failed
            assert all(answer.pieces for answer in failed), "the case is about errors after content"
            assert target.gateway.total("tidegate_requests_total", outcome="failed") == len(failed)
            assert target.gateway.total("tidegate_running") == 0
            assert (await ask(client, tokens=5)).error is None


def test_llama_cpp_killed_in_the_middle_gives_one_error_event(logs: Path) -> None:
    with (
        llama_server(logs / "llama-killed", model="slow", slots=2, context=2048) as engine,
        behind_gateway(engine, seats=2) as target,
    ):
        with open_stream(target.gateway.url, tokens=800, key=KEY) as stream:
            start = stream.read(600)
            os.killpg(engine.pid, signal.SIGKILL)
            rest = stream.read()
        assert error_events(start + rest) == 1
        assert b"[DONE]" not in rest
        assert target.gateway.total("tidegate_running") == 0
        assert target.gateway.total("tidegate_requests_total", outcome="failed") == 1
        assert eventually(lambda: target.gateway.total("tidegate_backend_up") == 0)
        with target.client() as client, pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "tide"}])
        assert caught.value.status_code in (502, 503)


async def test_what_vllm_refuses_inside_a_stream_is_no_answer(slow_vllm: EngineServer) -> None:
    """In a burst vLLM says 503 inside a stream of status 200, or as a status: either way the client sees no answer.

    The gateway is told that this is some OpenAI engine, so that the cache's use does not hold the burst back.
    """
    before = slow_vllm.total("vllm:admission_rejections_total")
    with behind_gateway(slow_vllm, seats=2 * VLLM_MOST, kind="openai") as target:
        async with target.many() as client:
            answers = await asyncio.gather(*(ask(client, tokens=4) for _ in range(2 * VLLM_MOST)))
        refused = [answer for answer in answers if answer.error]
        assert slow_vllm.total("vllm:admission_rejections_total") > before
        assert {answer.tokens for answer in answers if not answer.error} == {4}
        assert {answer.pieces for answer in refused} <= {0}
        assert target.gateway.total("tidegate_requests_total", outcome="completed") == len(answers) - len(refused)
        assert target.gateway.total("tidegate_running") == 0


def test_an_unknown_model_is_the_engines_own_404_where_any_model_is_allowed(slow_vllm: EngineServer) -> None:
    bodies = []
    with gateway_process("--backend", slow_vllm.url, "--engine", "vllm") as gateway:
        for url in (gateway.url, slow_vllm.url):
            with openai.OpenAI(base_url=url + "/v1", api_key="EMPTY", max_retries=0) as client:
                with pytest.raises(openai.NotFoundError) as caught:
                    client.chat.completions.create(model="nope", messages=[{"role": "user", "content": "tide"}])
                bodies.append(caught.value.body)
                assert [model.id for model in client.models.list()] == [MODEL]
    assert bodies[0] == bodies[1]


@pytest.fixture
def mortal_vllm(logs: Path, request: pytest.FixtureRequest) -> Iterator[EngineServer]:
    with vllm_server(logs / request.node.name, model="slow") as server:
        yield server


def test_the_death_of_vllms_engine_process_gives_one_error_event(mortal_vllm: EngineServer) -> None:
    with behind_gateway(mortal_vllm, seats=4) as target:
        with open_stream(target.gateway.url, tokens=480, key=KEY) as stream:
            start = stream.read(600)
            for pid in mortal_vllm.members():
                if pid != mortal_vllm.pid:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            rest = stream.read()
        assert error_events(start + rest) == 1
        assert eventually(lambda: target.gateway.total("tidegate_requests_total", outcome="failed") == 1)
        assert target.gateway.total("tidegate_running") == 0


def test_a_stream_that_vllm_leaves_silent_on_sigterm_is_ended(mortal_vllm: EngineServer) -> None:
    """vLLM told to stop closes its port; some open streams end, others stay open and silent for ever.

    The gateway ends those by its limit on silence, shortened here to a second.
    """
    silence = "gateway: {silence_timeout: 1s}\n"
    with behind_gateway(mortal_vllm, seats=4, settings=silence) as target, contextlib.ExitStack() as streams:
        opened = [streams.enter_context(open_stream(target.gateway.url, tokens=450, key=KEY)) for _ in range(3)]
        starts = [stream.read(300) for stream in opened]
        os.kill(mortal_vllm.pid, signal.SIGTERM)
        began = time.monotonic()
        bodies = [start + stream.read() for start, stream in zip(starts, opened, strict=True)]
        assert time.monotonic() - began < 60
        assert target.gateway.total("tidegate_running") == 0
    for body in bodies:
        ended = error_events(body) == 1 or b'"finish_reason":"abort"' in body or b'"finish_reason":"length"' in body
        assert ended, body[-300:]
