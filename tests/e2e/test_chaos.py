"""Everything at once: modes, policies, an engine that is killed, one that fails, clients that leave, an operator.

Each client that stays has one whole answer: the engine's very text, a whole fallback, a refusal, or the beginning of
the engine's text with one error event. Nothing is mixed, nothing is said twice, nobody is left without an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from e2e.raw import Answer, Client, ask, gateway, until
from e2e.test_control import admin
from e2e.test_resuming import request
from tidegate.refusals.fallback import MESSAGES
from tidegate.testing.gateway_process import GatewayProcess
from tidegate.testing.processes import engine_process, running, wait_for_line

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.timeout(120)]  # 8 to 15 s on a machine at rest

OPTIONS = {"profile": "slow", "noise": 0, "speed": 2}
POLICY = """
policy:
  preempt_rate: 1
  max_preemptions: 9
  resume_attempts: 9
  bands:
    p0: {reserve: 0, ttl: 60s}
    p1: {shed_answer: %s, ttl: 60s, preemptible: true, shed_hopeless: false}
    p2: {floor: 0.05}
modes: {quiet: {admit: [p0, p1]}}
"""
OTHER = "{model: other}"
MODES = ("transactions_only", "normal", "observe", "quiet", "transactions_only")
FAULTS: tuple[dict[str, object], ...] = (
    {"kind": "429", "times": 3, "retry_after_s": 0.3, "retry_form": "ms"},
    {"kind": "500", "times": 2},
    {"kind": "stream_error", "times": 1, "after_tokens": 5},
    {"kind": "cut", "times": 1, "after_tokens": 7},
    {"kind": "none"},
)
LOAD_S = 5.0
PATCHES: tuple[dict[str, object], ...] = (
    {"overtake_cap": 0.3},
    {"max_preemptions": 2},
    {"max_preemptions": 9},
    {"bands": {"p2": {"floor": 0}}},
    {"bands": {"p2": {"floor": 0.05}}},
    {"bands": {"p2": {"capacity": 3}, "p1": {"when_saturated": "shed", "ceiling": 0.6}}},
    {"bands": {"p2": {"capacity": 99}, "p1": {"when_saturated": "queue", "ceiling": 1.0}}},
)


class Mortal:
    """A simulated engine that can be killed, and started again where it was."""

    def __init__(self, model: str = "m") -> None:
        self._model = model
        self.url = ""

    def start(self) -> None:
        place = self.url.removeprefix("http://") or "127.0.0.1:0"
        words = [word for name, value in OPTIONS.items() for word in (f"--{name}", str(value))]
        command = [sys.executable, "-m", "tidegate", "engine", "--listen", place, "--model", self._model, "--seed", "3"]
        self._running = running([*command, *words])
        self._process = self._running.__enter__()
        self.url = wait_for_line(self._process, "listening on ")

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        self._running.__exit__(None, None, None)


@contextlib.asynccontextmanager
async def mortal() -> AsyncIterator[Mortal]:
    engine = Mortal()
    await asyncio.to_thread(engine.start)
    try:
        yield engine
    finally:
        await asyncio.to_thread(engine.stop)


@pytest.fixture(scope="module")
def steady() -> Iterator[str]:
    with engine_process(model="m", seed=3, **OPTIONS) as url:
        yield url


@pytest.fixture(scope="module")
def other() -> Iterator[str]:
    """The engine of another model, whose text is another."""
    with engine_process(model="other", seed=11, **OPTIONS) as url:
        yield url


def text_of(answer: Answer) -> tuple[str, list[str], int, int]:
    """Text, reasons of its end, errors and ``[DONE]`` of an answer with status 200 in either form."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        choice = json.loads(answer.body)["choices"][0]
        said = choice["message"]["content"] if "message" in choice else choice["text"]
        return said, [choice["finish_reason"]], 0, 0
    text, reasons, errors, done = "", [], 0, 0
    assert answer.body.endswith(b"\n\n")
    for event in filter(None, answer.body.split(b"\n\n")):
        assert errors + done == 0, "something comes behind the end"
        if event == b": waiting":  # a sign of life
            continue
        data = event.removeprefix(b"data: ")
        if data == b"[DONE]":
            done += 1
            continue
        found = json.loads(data)
        errors += "error" in found
        for choice in found.get("choices", ()):
            text += choice.get("text") or choice.get("delta", {}).get("content") or ""
            reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    return text, reasons, errors, done


Key = tuple[bool, int]


@dataclass
class Load:
    """What clients ask, and what they must get."""

    rng: random.Random
    url: str
    exact: dict[str, dict[Key, str]]
    kinds: Counter[str] = field(default_factory=Counter)
    sent: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)
    looks: int = 0

    async def one(self) -> None:
        rng = self.rng
        key = rng.random() < 0.7, rng.randrange(6)
        stream, band = rng.random() < 0.6, rng.choice(["p0", "p1", "p1", "p2", "p2"])
        name = f"r{len(self.sent):03}"
        body = body_of(key, stream=stream)
        path = "/v1/chat/completions" if key[0] else "/v1/completions"
        headers = {"x-tidegate-band": band, "x-request-id": name, "accept-language": "en"}
        if self.sent and rng.random() < 0.15:
            headers["x-tidegate-depends-on"] = rng.choice(sorted(self.sent)[-5:])
        self.sent.add(name)
        leaves_s = rng.choice([None, None, None, None, None, rng.uniform(0, 2)])
        client = await Client.connect(self.url)
        try:
            client.send(body, path=path, headers=headers)
            async with asyncio.timeout(leaves_s):
                answer = await client.answer()
        except TimeoutError:
            self.left.add(name)
            return
        finally:
            client.leave()
        if rng.random() < 0.1:
            await self.look_back()
        self.kinds[self.judge(answer, key, stream=stream)] += 1

    async def look_back(self) -> None:
        """Wait a little for somebody's request, and lend it the band of p0 meanwhile."""
        self.looks += 1
        name = self.rng.choice(sorted(self.sent)[-8:])
        path, headers = f"/v1/requests/{name}?wait=300ms", {"x-tidegate-band": "p0", "x-request-id": f"wait-{name}"}
        answer = await ask(self.url, method="GET", path=path, headers=headers)
        assert answer.status in (200, 404), answer

    def judge(self, answer: Answer, key: Key, *, stream: bool) -> str:
        """Say what a client got. Fails unless it is one whole answer."""
        assert not answer.broken, answer
        if answer.status != 200:
            assert answer.error["message"], answer
            return f"{answer.status}"
        text, reasons, errors, done = text_of(answer)
        if errors:
            assert (errors, done) == (1, 0), answer
            assert any(texts[key].startswith(text) for texts in self.exact.values()), ("mixed", text, answer)
            return "error event"
        assert done == stream, answer
        if text == MESSAGES["en"]:
            assert b"load_shedding_fallback" in answer.body
            return "fallback"
        (model,) = [name for name, texts in self.exact.items() if texts[key] == text] or [""]
        assert model, (text, answer.body)
        assert reasons == ["length"]
        return f"exact {model}"


def body_of(key: Key, *, stream: bool = False, model: str = "m") -> dict[str, Any]:
    chat, number = key
    body = request(f"tell me {number}", chat=chat, max_tokens=8 + 12 * number, stream=stream)
    return {**body, "model": model}


async def texts(url: str, model: str) -> dict[Key, str]:
    """What an engine answers to each prompt."""

    async def ask_for(key: Key) -> str:
        path = "/v1/chat/completions" if key[0] else "/v1/completions"
        return text_of(await ask(url, body_of(key, model=model), path=path))[0]

    keys = [(chat, number) for chat in (True, False) for number in range(6)]
    return dict(zip(keys, await asyncio.gather(*map(ask_for, keys)), strict=True))


class Operator:
    """Turns everything that can be turned."""

    def __init__(self, rng: random.Random, process: GatewayProcess, engines: list[str], doomed: Mortal) -> None:
        self.rng = rng
        self.process = process
        self.engines = engines
        self.doomed = doomed

    async def run(self, until_s: float) -> None:
        loop, rng = asyncio.get_running_loop(), self.rng
        moves = [self.mode, self.mode, self.patch, self.put, self.delete, self.delete, self.fault]
        kills = asyncio.ensure_future(self.kill_twice(until_s - loop.time()))
        while loop.time() < until_s:
            await asyncio.sleep(rng.uniform(0.02, 0.3))
            await rng.choice(moves)()
        await kills
        for url in self.engines:
            await self.set_fault(url, {"kind": "none"})
        await self.set_mode("transactions_only")

    async def kill_twice(self, within_s: float) -> None:
        for _ in range(2):
            await asyncio.sleep(within_s / 4)
            await asyncio.to_thread(self.doomed.kill)
            await asyncio.sleep(self.rng.uniform(0, within_s / 6))
            await asyncio.to_thread(self.doomed.start)

    async def set_mode(self, name: str) -> None:
        status, said = await admin(self.process, "POST", "/admin/mode", {"mode": name})
        assert status == 200, said

    async def mode(self) -> None:
        await self.set_mode(self.rng.choice(MODES))

    async def patch(self) -> None:
        status, said = await admin(self.process, "PATCH", "/admin/policy", self.rng.choice(PATCHES))
        assert status == 200, said

    async def put(self) -> None:
        _, policy = await admin(self.process, "GET", "/admin/policy")
        policy["bands"]["p1"]["floor"] = self.rng.choice([0, 0.02])
        status, said = await admin(self.process, "PUT", "/admin/policy", policy)
        assert status == 200, said

    async def delete(self) -> None:
        _, listed = await admin(self.process, "GET", "/admin/requests")
        if listed["requests"]:
            ident = self.rng.choice(listed["requests"])["id"]
            status, said = await admin(self.process, "DELETE", f"/admin/requests/{ident}")
            assert status in (200, 404), said  # it may have ended meanwhile

    async def fault(self) -> None:
        await self.set_fault(self.rng.choice(self.engines), self.rng.choice(FAULTS))

    async def set_fault(self, url: str, fault: dict[str, object]) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):  # it may be down
            await ask(url, fault, path="/sim/fault")


def settings(steady: str, doomed: str, other: str, p1: str) -> str:
    backends = ", ".join(
        f'{{name: b{number}, url: "{url}", engine: tidegate, seats: 2}}' for number, url in enumerate((steady, doomed))
    )
    spare = f'{{name: o, url: "{other}", engine: tidegate, seats: 2}}'
    models = f"[{{name: m, backends: [{backends}]}}, {{name: other, backends: [{spare}]}}]"
    return f"models: {models}\ngateway: {{queue_heartbeat_after: 300ms}}\n{POLICY % p1}"


@pytest.mark.parametrize(("seed", "p1"), [(1, "fallback"), (2, OTHER), (3, "error"), (4, OTHER)])
async def test_each_client_has_one_whole_answer_whatever_happens(steady: str, other: str, seed: int, p1: str) -> None:
    rng = random.Random(seed)
    exact = {"m": await texts(steady, "m"), "other": await texts(other, "other")}
    async with mortal() as doomed, gateway(settings(steady, doomed.url, other, p1)) as process:
        load = Load(rng, process.url, exact)
        ends = asyncio.get_running_loop().time() + LOAD_S
        operator = asyncio.ensure_future(Operator(rng, process, [steady, doomed.url], doomed).run(ends))
        clients = []
        while asyncio.get_running_loop().time() < ends:
            clients += [asyncio.ensure_future(load.one()) for _ in range(rng.choice([1, 1, 2, 5]))]
            await asyncio.sleep(rng.uniform(0.05, 0.4))
        await operator
        done, left = await asyncio.wait(clients, timeout=40)  # 2 s on a machine at rest
        states = process.state()["bands"] if left else ()
        assert not left, (len(left), states)
        for each in done:
            each.result()
        assert (await admin(process, "GET", "/admin/mode"))[1]["mode"] == "transactions_only"
        await until(lambda: len(process.requests()) >= len(load.sent) + load.looks, within_s=10)
        lines = process.requests()
        assert len(lines) == len(load.sent) + load.looks
        assert len({line["request_id"] for line in lines}) == len(lines)
        assert load.sent - {line["request_id"] for line in lines} <= load.left, "who leaves at once has no name yet"
        for gauge in ("tidegate_running", "tidegate_queue_depth"):
            assert process.total(gauge) == 0
        assert "Traceback" not in process.log.read_text()
        assert load.kinds["exact m"] > 0, load.kinds
