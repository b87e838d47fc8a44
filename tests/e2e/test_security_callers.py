"""Nobody gets a band, a share or a key that is not theirs, whatever they write."""

from __future__ import annotations

import asyncio
import json

import pytest

from e2e.raw import Client, Upstream, Visit, ask, chat, gateway, until, whole
from tidegate.config import key_digest

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

MODESTY = "client-key-modest"
OTHER = "client-key-other"
SECRET = "upstream-key"
ENVIRON = {"UPSTREAM_KEY": SECRET}
BEARER = {"authorization": f"Bearer {MODESTY}"}


def config(upstream: Upstream, *, seats: int = 4) -> str:
    return f"""
models:
  - name: raw
    backends: [{{name: b0, url: "{upstream.url}", engine: vllm, seats: {seats}, api_key: "${{UPSTREAM_KEY}}"}}]
tenants:
  - {{name: modest, keys: ["{key_digest(MODESTY)}"], band: p1, max_band: p1}}
  - {{name: other, keys: ["{key_digest(OTHER)}"], band: p1, max_band: p1}}
objectives: {{vip: p0}}
policy: {{discipline: strict}}
"""


async def behave(visit: Visit) -> None:
    leak = b"authorization: Bearer upstream-key\r\nx-api-key: upstream-key\r\nset-cookie: key=upstream-key\r\n"
    visit.answer(whole(), more=leak + b"openai-organization: upstream-key\r\nx-ratelimit-limit-requests: 9000\r\n")


TRIES: list[tuple[dict[str, str], dict[str, object]]] = [
    ({"x-tidegate-band": "p0"}, {}),
    ({"x-tidegate-band": "P0 "}, {}),
    ({"x-llm-d-inference-objective": "vip"}, {}),
    ({"x-gateway-inference-objective": "vip"}, {}),
    ({"x-gateway-inference-objective": "p0"}, {}),
    ({"x-smg-priority": "critical"}, {}),
    ({"x-request-priority": "high"}, {}),
    ({"x-request-priority": "p0"}, {}),
    ({}, {"service_tier": "priority"}),
    ({}, {"service_tier": "fast"}),
    ({"x-vllm-priority": "-99", "x-sglang-priority": "99", "priority": "u=0", "x-priority": "1"}, {"priority": -99}),
    ({"x-tidegate-band": "p0"}, {"service_tier": "priority", "priority": -99, "metadata": {"band": "p0"}}),
]


async def test_a_tenant_stays_below_its_highest_band_whatever_it_writes() -> None:
    async with Upstream(behave).running() as upstream, gateway(config(upstream), environ=ENVIRON) as process:
        for path in ("/v1/chat/completions", "/v1/responses", "/v1/rerank"):
            for headers, fields in TRIES:
                answer = await ask(process.url, chat(**fields), path=path, headers=BEARER | headers)
                assert (answer.status, answer.headers["x-tidegate-band"]) == (200, "p1")
                visit = upstream.visits[-1]
                assert json.loads(visit.body).get("priority") == (None if path == "/v1/rerank" else 1)
                assert not [name for name in visit.headers if "priority" in name or name.startswith("x-tidegate")]
        assert process.total("tidegate_clamped_total") == 3 * 11
        assert process.total("tidegate_clamped_total", band="p1") == 3 * 11


async def test_a_tenant_gains_no_turn_by_calling_itself_many() -> None:
    order: list[str] = []
    go = asyncio.Event()

    async def serve(visit: Visit) -> None:
        order.append(json.loads(visit.body)["user"])
        await go.wait()
        visit.answer(whole())

    async with Upstream(serve).running() as upstream, gateway(config(upstream, seats=1), environ=ENVIRON) as process:
        clients = []
        for number in range(40):  # the first 20 all claim to be others, the rest are one honest caller's
            names = ("x-tidegate-fairness-id", "x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
            many = dict.fromkeys(names, f"f{number}")
            headers = BEARER | many if number < 20 else {"authorization": f"Bearer {OTHER}"}
            client = await Client.connect(process.url)
            client.send(chat(user="modest" if number < 20 else "other"), headers=headers)
            clients.append(client)
            if number == 19:
                await until(lambda: process.total("tidegate_queue_depth") == 19, within_s=5)
        await until(lambda: process.total("tidegate_queue_depth") == 39, within_s=5)
        go.set()
        await asyncio.gather(*(client.answer() for client in clients))
        assert order[:21].count("other") >= 9
        for client in clients:
            client.leave()


async def test_keys_stay_on_their_side() -> None:
    async with Upstream(behave).running() as upstream, gateway(config(upstream), environ=ENVIRON) as process:
        shown = [
            BEARER,
            {"api-key": MODESTY},
            {"x-api-key": MODESTY},
            {**BEARER, "cookie": f"key={MODESTY}", "x-goog-api-key": MODESTY, "proxy-authorization": MODESTY},
            {**BEARER, "openai-organization": MODESTY, "openai-project": MODESTY},
            {**BEARER, "x-api-key": MODESTY, "api-key": MODESTY, "connection": "authorization, x-request-id"},
        ]
        for path in ("/v1/chat/completions", "/v1/messages", "/v1/embeddings"):
            for headers in shown:
                answer = await ask(process.url, chat(), path=path, headers=headers)
                visit = upstream.visits[-1]
                assert answer.status == 200
                assert MODESTY not in str(visit.headers)
                assert visit.headers["authorization"] == f"Bearer {SECRET}"
                assert SECRET not in str(answer.headers)
                assert not [name for name in answer.headers if name.startswith("x-ratelimit")]
        wrong = await ask(process.url, chat(), headers={"authorization": f"Bearer {MODESTY}x"})
        assert (wrong.status, MODESTY in wrong.body.decode()) == (401, False)
        assert not [key for key in (MODESTY, SECRET) if key in process.log.read_text() + str(process.state())]


async def test_a_web_page_and_a_proxy_are_nobody() -> None:
    async with Upstream(behave).running() as upstream:
        config_ = f'models: [{{name: raw, backends: [{{name: b0, url: "{upstream.url}", engine: vllm, seats: 4}}]}}]'
        async with gateway(config_) as process:
            ways = [("POST", "/v1/chat/completions"), ("POST", "/v1/responses"), ("POST", "/v1/rerank")]
            ways += [("GET", "/v1/models"), ("GET", "/v1/requests/x"), ("POST", "/v1/audio/transcriptions")]
            signs = [{"origin": "https://evil.example"}, {"origin": "null"}, {"forwarded": "for=10.0.0.1"}]
            signs += [{"x-forwarded-for": "127.0.0.1"}, {"origin": "http://localhost", "authorization": "Bearer EMPTY"}]
            for method, path in ways:
                for sign in signs:
                    answer = await ask(process.url, chat(), method=method, path=path, headers=sign)
                    assert (answer.status, path) == (401, path)
            for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", ""):
                answer = await ask(process.url, chat(), headers={"host": host})
                assert answer.status in (400, 403)
            assert upstream.visits == []
