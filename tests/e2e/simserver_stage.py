"""Questions to a simulated engine that is a process of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import openai

QUESTION: Any = [{"role": "user", "content": "用中文回答: what is a queue? 🙂"}]


def connection(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    assert parts.hostname is not None
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=40)


def call(
    url: str, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    with contextlib.closing(connection(url)) as wire:
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
        wire.request(method, path, data, headers or {})
        response = wire.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()


def stats(url: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call(url, "GET", "/sim/stats")[2])
    return found


def chat(**fields: object) -> dict[str, object]:
    return {"model": "sim-8b", "messages": QUESTION, "max_tokens": 30, "ignore_eos": True, **fields}


def metric(url: str, name: str) -> float:
    page = call(url, "GET", "/metrics")[2].decode()
    found = re.search(rf"^vllm:{name}{{[^}}]*}} (\S+)$", page, re.MULTILINE)
    assert found, f"no {name} in {page}"
    return float(found[1])


def until(condition: Callable[[], bool], *, within_s: float = 30.0) -> bool:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def text_of(client: openai.OpenAI, **fields: Any) -> str:
    answer = client.chat.completions.create(**{"model": "sim-8b", "messages": QUESTION, **fields})
    return answer.choices[0].message.content or ""
