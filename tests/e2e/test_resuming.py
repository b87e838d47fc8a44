"""Answers that are stopped for p0, or whose engine dies, go on to the very text that they would have had."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.jobs_stage import client_of, reach, records, row, submit
from e2e.raw import Answer, Upstream, Visit, ask, gateway, until
from tidegate.testing.processes import engine_process, running, wait_for_line

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

POLICY = "policy: {preempt_rate: 1, max_preemptions: 9, bands: {p0: {reserve: 0}, p2: {floor: 0}}}"
EXACT = {"ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """An engine whose text is a function of the prompt and the place in it; one token in some 13 ms."""
    with engine_process(model="m", profile="slow", noise=0, seed=3, speed=2) as url:
        yield url


def config(*urls: str, seats: int, more: str = POLICY) -> str:
    backends = ", ".join(
        f'{{name: b{number}, url: "{url}", engine: tidegate, seats: {seats}}}' for number, url in enumerate(urls)
    )
    return f"models: [{{name: m, backends: [{backends}]}}]\n{more}\n"


def request(prompt: str, *, chat: bool = True, **more: Any) -> dict[str, Any]:
    said = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
    return {"model": "m", **said, **EXACT, **more}


async def say(url: str, body: dict[str, Any], band: str = "p2", **headers: str) -> Answer:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await ask(url, body, path=path, headers={"x-tidegate-band": band, **named})


def read(answer: Answer) -> tuple[str, dict[str, Any], list[str]]:
    """Text, usage and the reasons of an answer in either form."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        whole = json.loads(answer.body)
        choice = whole["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        return text, whole["usage"], [choice["finish_reason"]]
    text, reasons = "", []
    usage: dict[str, Any] = {}
    events = [line.removeprefix(b"data: ") for line in answer.body.split(b"\n\n") if line.startswith(b"data: ")]
    assert events[-1] == b"[DONE]"
    assert events.count(b"[DONE]") == 1
    for event in map(json.loads, events[:-1]):
        assert "error" not in event
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            text += choice.get("text") or choice.get("delta", {}).get("content") or ""
            reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    return text, usage, reasons


async def going(url: str, count: int) -> None:
    """Wait until an engine runs so many requests and has written a few tokens of each."""

    def stats() -> dict[str, Any]:
        with urllib.request.urlopen(f"{url}/sim/stats", timeout=40) as answer:
            return dict(json.load(answer))

    await until(lambda: stats()["running"] >= count, within_s=5)
    wanted = stats()["generation_tokens"] + 5 * count
    await until(lambda: stats()["generation_tokens"] >= wanted, within_s=5)


def counts(usage: dict[str, Any]) -> tuple[int, int, int]:
    return usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]


FORMS = [
    {"stream": True, "stream_options": {"include_usage": True}},
    {"stream": True},
    {},
]


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completions"])
@pytest.mark.parametrize("form", FORMS, ids=["usage", "stream", "plain"])
async def test_a_stopped_answer_is_what_it_would_have_been(engine: str, form: dict[str, Any], chat: bool) -> None:
    async with gateway(config(engine, seats=2)) as process:
        bodies = [request(f"tell me {number}", chat=chat, max_tokens=150, **form) for number in range(2)]
        plain = [await say(engine, body) for body in bodies]
        low = [asyncio.ensure_future(say(process.url, body)) for body in bodies]
        await until(lambda: process.total("tidegate_running") == 2, within_s=5)
        for wait_s in (0.3, 0.2):
            await asyncio.sleep(wait_s)
            high = await say(process.url, request("vip", max_tokens=3), "p0")
            assert high.status == 200
        for answer, expected in zip(await asyncio.gather(*low), plain, strict=True):
            assert answer.status == 200
            text, usage, reasons = read(answer)
            expected_text, expected_usage, expected_reasons = read(expected)
            assert text == expected_text
            assert reasons == expected_reasons == ["length"]
            if expected_usage:
                assert counts(usage) == counts(expected_usage)
            assert bool(usage) == bool(expected_usage)
        assert process.total("tidegate_preemptions_total", victim="p2", by="p0") >= 1
        assert process.total("tidegate_resumes_total", cause="preempted", outcome="completed") >= 1
        assert process.total("tidegate_seam_seconds_count", cause="preempted") >= 1
        assert process.total("tidegate_running") == 0
        assert process.total("tidegate_requests_total", outcome="completed") == 4


class Doomed:
    """A second engine like the other one, to be killed with its requests in it."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tidegate", "engine", "--listen", "127.0.0.1:0", "--model", "m"]
        self.running = running([*command, "--profile", "slow", "--noise", "0", "--seed", "3", "--speed", "2"])

    async def __aenter__(self) -> Doomed:
        self.process = self.running.__enter__()
        self.url = await asyncio.to_thread(wait_for_line, self.process, "listening on ")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.running.__exit__(None, None, None)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)


def errors(answer: Answer) -> int:
    return answer.body.count(b'"error"')


async def test_streams_outlive_one_of_two_engines(engine: str) -> None:
    """kill -9 under streams of three bands: what can go on completes exactly, the rest ends in one error event."""
    async with Doomed() as doomed, gateway(config(engine, doomed.url, seats=40, more="")) as process:
        bodies = [
            request(f"tell me {number}", chat=number % 3 != 0, stream=True, max_tokens=150 + number)
            | ({"logprobs": True} if number % 5 == 4 and number % 3 else {})
            for number in range(60)
        ]
        bands = [f"p{number % 3}" for number in range(60)]
        expected = dict(zip(range(4), await asyncio.gather(*(say(engine, bodies[n]) for n in range(4))), strict=True))
        answers = [
            asyncio.ensure_future(say(process.url, body, band)) for body, band in zip(bodies, bands, strict=True)
        ]
        await until(lambda: process.total("tidegate_running") == 60, within_s=10)
        await until(
            lambda: all(process.total("tidegate_running", backend=name) > 10 for name in ("b0", "b1")), within_s=5
        )
        await going(doomed.url, 10)
        doomed.kill()
        failed = 0
        for number, answer in enumerate(await asyncio.gather(*answers)):
            assert answer.status == 200
            assert not answer.broken
            if errors(answer):
                assert "logprobs" in bodies[number]
                assert (errors(answer), answer.body.count(b"[DONE]")) == (1, 0)
                failed += 1
                continue
            text, _, reasons = read(answer)
            assert reasons == ["length"]
            if number in expected:
                assert text == read(expected[number])[0]
        assert process.total("tidegate_requests_total", outcome="failed") == failed
        assert process.total("tidegate_requests_total", outcome="completed") == 60 - failed
        assert process.total("tidegate_resumes_total", cause="broken", outcome="completed") >= 10
        assert process.total("tidegate_running") == 0


class Hanging(Upstream):
    """An engine that begins each answer as ``engine`` would, and then says nothing more with its connection open."""

    SAID = 12  # events

    def __init__(self, engine: str) -> None:
        super().__init__(self._begin)
        self._engine = engine
        self.healthy = True

    async def _begin(self, visit: Visit) -> None:
        whole = await ask(self._engine, visit.body, path=visit.path)
        visit.start_stream()
        visit.send(b"".join(whole.body.split(b"\n\n", self.SAID)[n] + b"\n\n" for n in range(self.SAID)))
        await asyncio.sleep(60)

    async def look(self, visit: Visit) -> None:
        visit.answer(b"{}", 200 if self.healthy else 503)


async def test_streams_that_fall_silent_go_on_elsewhere_when_their_engine_is_not_well(engine: str) -> None:
    """Silence alone ends nothing; silence and a failed probe do, and what can go on then does, with the exact text."""
    more = "gateway: {silence_timeout: 1s}\npolicy: {preempt_rate: 0}"
    hanging = Hanging(engine)
    async with (
        hanging.running(),
        gateway(config(engine, hanging.url, seats=8, more=more)) as process,
    ):
        bodies = [request(f"tell me {number}", chat=number % 2 == 0, stream=True, max_tokens=40) for number in range(8)]
        bodies += [request(f"tell me {number}", stream=True, max_tokens=40, logprobs=True) for number in (8, 9)]
        expected = await asyncio.gather(*(say(engine, body) for body in bodies[:8]))
        answers = [asyncio.ensure_future(say(process.url, body)) for body in bodies]
        await until(lambda: process.total("tidegate_dispatch_total") == 10, within_s=5)
        held = process.total("tidegate_running", backend="b1")
        assert held >= 3
        await until(lambda: len(hanging.visits) == held, within_s=5)
        await asyncio.sleep(2.5)
        assert process.total("tidegate_running", backend="b1") == held, "it is well, so they keep their seats"
        hanging.healthy = False
        found = await asyncio.gather(*answers)
        for answer, whole in zip(found[:8], expected, strict=False):
            assert not answer.broken
            assert read(answer)[0] == read(whole)[0]
            assert read(answer)[2] == ["length"]
        assert all((errors(answer), answer.body.count(b"[DONE]")) in ((0, 1), (1, 0)) for answer in found[8:])
        silent = sum(map(errors, found[8:]))
        assert process.total("tidegate_resumes_total", cause="broken", outcome="completed") == held - silent >= 1
        assert process.total("tidegate_requests_total", outcome="failed") == silent
        assert process.total("tidegate_running") == 0


async def test_a_client_may_forbid_that_its_answer_goes_on(engine: str) -> None:
    async with Doomed() as doomed, gateway(config(engine, doomed.url, seats=4, more="")) as process:
        body = request("tell me", stream=True, max_tokens=200)
        answers = [asyncio.ensure_future(say(process.url, body, x_tidegate_resume="never")) for _ in range(8)]
        await until(lambda: process.total("tidegate_running") == 8, within_s=5)
        await going(doomed.url, 4)
        doomed.kill()
        found = [errors(answer) for answer in await asyncio.gather(*answers)]
        assert sorted(found) == [0, 0, 0, 0, 1, 1, 1, 1]


async def test_without_attempts_a_broken_stream_ends_with_one_error_event(engine: str) -> None:
    more = "policy: {resume_attempts: 0}"
    async with Doomed() as doomed, gateway(config(engine, doomed.url, seats=1, more=more)) as process:
        answers = [asyncio.ensure_future(say(process.url, request("x", stream=True, max_tokens=150))) for _ in range(2)]
        await until(lambda: process.total("tidegate_running") == 2, within_s=5)
        await going(doomed.url, 1)
        doomed.kill()
        assert sorted(errors(answer) for answer in await asyncio.gather(*answers)) == [0, 1]


@pytest.mark.parametrize("state", ["stopped", "running again"])
async def test_a_client_that_leaves_a_stopped_answer_leaves_nothing(engine: str, state: str) -> None:
    async with gateway(config(engine, seats=1)) as process:
        low = asyncio.ensure_future(say(process.url, request("low", stream=True, max_tokens=900)))
        await going(engine, 1)
        high = asyncio.ensure_future(
            say(process.url, request("vip", max_tokens=150 if state == "stopped" else 5), "p0")
        )
        await until(lambda: process.total("tidegate_preemptions_total") == 1, within_s=5)
        if state == "running again":
            assert (await high).status == 200
            await until(lambda: process.total("tidegate_running", band="p2") == 1, within_s=5)
            await asyncio.sleep(0.2)
        low.cancel()
        await asyncio.gather(low, return_exceptions=True)
        assert (await high).status == 200
        await until(lambda: process.total("tidegate_running") == 0, within_s=5)
        assert process.total("tidegate_queue_depth") == 0
        assert process.total("tidegate_requests_total", outcome="cancelled") == 1
        assert (await say(process.url, request("next", max_tokens=3))).status == 200


async def test_shutting_down_ends_a_stopped_answer_with_one_error_event(engine: str) -> None:
    async with gateway(config(engine, seats=1)) as process:
        low = asyncio.ensure_future(say(process.url, request("low", stream=True, max_tokens=900)))
        await going(engine, 1)
        high = asyncio.ensure_future(say(process.url, request("vip", stream=True, max_tokens=200), "p0"))
        await until(lambda: process.total("tidegate_preemptions_total") == 1, within_s=5)
        process.signal(signal.SIGTERM)
        answer = await low
        assert (errors(answer), answer.body.count(b"[DONE]")) == (1, 0)
        assert b'"draining"' in answer.body
        assert read(await high)[2] == ["length"], "what runs may finish"


async def test_what_cannot_go_on_is_stopped_before_its_first_token_or_not_at_all(engine: str) -> None:
    async with gateway(config(engine, seats=1)) as process:
        low = asyncio.ensure_future(say(process.url, request("low", stream=True, n=2, max_tokens=150)))
        await going(engine, 1)
        assert (await say(process.url, request("vip", max_tokens=3), "p0")).status == 200
        assert (await low).body.count(b"[DONE]") == 1
        assert process.total("tidegate_preemptions_total") == 0


async def test_p0_does_not_wait_for_a_slow_answer_to_end(engine: str) -> None:
    """A seat full of an answer of many seconds, no reserve: p0 waits for half of its target and one round trip."""
    async with gateway(config(engine, seats=4)) as process:
        low = [
            asyncio.ensure_future(say(process.url, request(f"low {n}", stream=True, max_tokens=400))) for n in range(4)
        ]
        await until(lambda: process.total("tidegate_running") == 4, within_s=5)
        waits = []
        for number in range(10):
            await asyncio.sleep(0.1)
            answer = await say(process.url, request(f"vip {number}", max_tokens=2), "p0")
            waits.append(float(answer.headers["x-tidegate-queue-ms"]))
        assert sorted(waits)[5] < 200, "a bound that a loaded machine holds; the bench has the figure"
        assert all(answer.status == 200 for answer in await asyncio.gather(*low))


async def test_rows_of_a_batch_are_stopped_and_go_on(engine: str, tmp_path: Path) -> None:
    jobs = f'jobs: {{store: "sqlite:///{tmp_path}/jobs.db", files: "{tmp_path}/files"}}\n{POLICY}'
    bodies = {f"r{number}": request(f"row {number}", max_tokens=150 + number) for number in range(3)}
    lines = b"".join(row(name, **body) + b"\n" for name, body in bodies.items())
    async with gateway(config(engine, seats=2, more=jobs)) as process, client_of(process.url) as client:
        batch = await submit(client, lines)
        await until(lambda: process.total("tidegate_running") == 2, within_s=10)
        for _ in range(2):
            await asyncio.sleep(0.2)
            assert (await say(process.url, request("vip", max_tokens=3), "p0")).status == 200
        batch = await reach(client, batch)
        output, errors_ = await records(client, batch)
        assert (batch.status, len(output), errors_) == ("completed", 3, [])
        assert process.total("tidegate_preemptions_total", victim="p2", by="p0") >= 1
        for record in output:
            whole = record["response"]["body"]
            text, usage, reasons = read(await say(engine, bodies[record["custom_id"]]))
            choice = whole["choices"][0]
            assert (choice["message"]["content"], [choice["finish_reason"]]) == (text, reasons)
            assert counts(whole["usage"]) == counts(usage)
            assert whole["object"] == "chat.completion"
