"""What a backend is told of a request: its priority, and the band of a prompt that is too long for its own."""

from __future__ import annotations

import json

import pytest

from e2e.raw import Upstream, Visit, ask, chat, gateway, whole
from tidegate.config import key_digest

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

CONFIG = """
models:
  - name: told
    backends: [{{name: t, url: "{url}", engine: vllm, seats: 4}}]
  - name: untold
    backends: [{{name: u, url: "{url}", engine: vllm, seats: 4, send_priority: false}}]
policy:
  bands:
    p0: {{max_input_tokens: 200}}
tenants:
  - {{name: known, keys: ["{known}"], trusted: true}}
  - {{name: other, keys: ["{other}"], max_band: p0}}
"""
KEYS = {"known": "key-of-the-known", "other": "key-of-the-other"}


async def answered(visit: Visit) -> None:
    visit.answer(whole())


def config(upstream: Upstream) -> str:
    return CONFIG.format(url=upstream.url, **{name: key_digest(key) for name, key in KEYS.items()})


async def test_whose_priority_an_engine_is_told() -> None:
    async with Upstream(answered).running() as upstream, gateway(config(upstream)) as process:

        async def told(model: str, tenant: str, **more: object) -> object:
            headers = {"authorization": f"Bearer {KEYS[tenant]}", "x-tidegate-band": "p1"}
            answer = await ask(process.url, {**chat(**more), "model": model}, headers=headers)
            assert answer.status == 200
            return json.loads(upstream.visits[-1].body).get("priority", "none")

        ours = await told("told", "other")
        assert isinstance(ours, int)
        assert await told("told", "other", priority=77) == ours
        assert await told("told", "known") == ours
        assert await told("told", "known", priority=None) == ours
        assert await told("told", "known", priority=77) == 77
        assert await told("untold", "other") == "none"
        assert await told("untold", "other", priority=77) == "none"
        assert await told("untold", "known", priority=77) == 77


async def test_a_prompt_too_long_for_its_band_runs_lower_and_is_counted() -> None:
    async with Upstream(answered).running() as upstream, gateway(config(upstream)) as process:
        headers = {"authorization": f"Bearer {KEYS['other']}", "x-tidegate-band": "p0"}
        for words, band in ((10, "p0"), (5000, "p1")):
            body = {**chat(messages=[{"role": "user", "content": "word " * words}]), "model": "told"}
            answer = await ask(process.url, body, headers=headers)
            assert (answer.status, answer.headers["x-tidegate-band"]) == (200, band)
        assert process.total("tidegate_demoted_total", band="p1") == 1
        assert process.total("tidegate_demoted_total") == 1
        assert process.total("tidegate_clamped_total") == 0
