"""The priority that a backend is told: what the settings say of the backend and of the tenant decides, nothing else."""

from __future__ import annotations

import json
from typing import cast

import pytest

from tidegate.classify import Classifier, Facts, ParsedBody, Refused, Route, parse_body
from tidegate.config import Settings, key_digest, parse_settings
from tidegate.core import Lease, Ticket, Turn
from tidegate.gateway.asked import Asked
from tidegate.gateway.outgoing import body_of
from tidegate.gateway.pools import Backend, Pools
from tidegate.runtime import Driver
from tidegate.testing import ManualClock

KEYS = {"known": "key-of-the-known", "other": "key-of-the-other"}
SETTINGS = """
models:
  - name: m
    backends:
      - {{name: told, url: "http://127.0.0.1:9", engine: vllm, seats: 4}}
      - {{name: untold, url: "http://127.0.0.1:10", engine: vllm, seats: 4, send_priority: false}}
tenants:
  - {{name: known, keys: ["{known}"], trusted: true}}
  - {{name: other, keys: ["{other}"]}}
"""


def settings() -> Settings:
    return parse_settings(SETTINGS.format(**{name: key_digest(key) for name, key in KEYS.items()}))


def sent(tenant: str, backend: Backend, route: Route, priority: str) -> object:
    """Give the priority in the body that goes upstream."""
    raw = f'{{"model":"m","messages":[]{"," if priority else ""}{priority}}}'.encode()
    body = parse_body(raw, route)
    assert isinstance(body, ParsedBody)
    headers = {b"host": b"localhost", b"authorization": b"Bearer " + KEYS[tenant].encode()}
    classified = Classifier(settings()).classify(Facts(route, route, headers, raw, body, "id"))
    assert not isinstance(classified, Refused)
    lease = Lease(1, Ticket("id", "m", 1, tenant), backend.name, Turn.TURN, 1, 0.0, 0.0)
    return json.loads(body_of(Asked(route, [], raw, body, classified), backend, lease)).get("priority")


@pytest.mark.parametrize(
    ("tenant", "backend", "route", "priority", "told"),
    [
        ("other", "told", Route.CHAT, "", 1),
        ("other", "told", Route.CHAT, '"priority":-9', 1),
        ("known", "told", Route.CHAT, "", 1),
        ("known", "told", Route.CHAT, '"priority":null', 1),
        ("known", "told", Route.CHAT, '"priority":-9', -9),
        ("other", "told", Route.OTHER, '"priority":-9', None),
        ("known", "told", Route.OTHER, '"priority":-9', -9),
        ("other", "untold", Route.CHAT, "", None),
        ("other", "untold", Route.CHAT, '"priority":-9', None),
        ("known", "untold", Route.CHAT, '"priority":-9', -9),
    ],
)
def test_priorities(tenant: str, backend: str, route: Route, priority: str, told: int | None) -> None:
    pools = Pools(settings(), cast(Driver, None), ManualClock())
    assert sent(tenant, pools.backends[backend], route, priority) == told
