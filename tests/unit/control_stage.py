"""The control port's app over a real scheduler in virtual time, for tests that speak HTTP to it without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

from tidegate.classify import Classifier
from tidegate.config import Settings, key_digest, parse_settings
from tidegate.control import Audit, Books, Feed, Hooks, Keeper, Live, build_control_app
from tidegate.control.letters import Letters
from tidegate.control.what_if import Simulate, WhatIf
from tidegate.core import Scheduler
from tidegate.runtime import Driver
from tidegate.telemetry import Recorder
from tidegate.testing import LoopClock
from unit import openapi_check

LOCAL = [(b"host", b"127.0.0.1:8401")]
JSON = (b"content-type", b"application/json")
FILE = 'models: [{name: m, backends: [{name: b, url: "http://b:1", seats: 1, api_key: hunter2}]}]\n'
TENANTS = f"tenants: [{{name: checkout, keys: ['{key_digest('checkout-key')}'], band: p0}}]\n"
OPERATORS = (
    f"operators: [{{name: duty, role: operator, token: '{key_digest('duty-token')}'}}, "
    f"{{name: wall, role: viewer, token: '{key_digest('wall-token')}'}}]"
)


class Answer(NamedTuple):
    status: int
    content_type: str
    body: bytes
    headers: dict[bytes, bytes]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Stage:
    """Must be made inside a running loop. ``edges`` collects what those who answer clients were told."""

    def __init__(
        self,
        text: str = FILE,
        *,
        scheduler: Callable[[Settings], Scheduler] | None = None,
        audit_file: Path | None = None,
        load: Callable[[], Settings] | None = None,
        letters: Letters | None = None,
        what_if: Simulate | None = None,
    ) -> None:
        self.settings = parse_settings(text)
        policy = self.settings.core_policy()
        self.clock = LoopClock()
        self.recorder = Recorder(policy)
        self.driver = Driver(scheduler(self.settings) if scheduler else Scheduler(policy), self.clock, self.recorder)
        self.edges: list[Settings] = []
        self.stopped: list[str] = []
        self.drains = 0
        keeper = Keeper(None)
        self.audit = Audit(keeper, self.clock.utc_now, audit_file)
        self.live = Live(self.settings, self._apply, self.audit, utc_now=self.clock.utc_now, load=load)
        self.books = Books(keeper, self.audit, self.live, self.recorder.usage, utc_now=self.clock.utc_now)
        tried = None if what_if is None else WhatIf(self.driver, self.recorder, what_if)
        hooks = Hooks(self._stop, self._drain, self.books, letters, tried)
        self.feed = Feed(self.driver, self.recorder, self.live, utc_now=self.clock.utc_now)
        self.app = build_control_app(self.driver, self.recorder, self.live, hooks, self.feed)

    def _apply(self, settings: Settings, mode: str) -> None:
        policy, effective = settings.core_policy(mode), settings.in_mode(mode)
        self.driver.set_policy(policy)
        self.recorder.mode = mode
        self.edges.append(effective)

    def _stop(self, ticket_id: str) -> bool:
        self.stopped.append(ticket_id)
        return ticket_id != "nobody"

    def _drain(self) -> None:
        self.drains += 1

    async def ask(
        self,
        method: str,
        target: str,
        body: object = None,
        *,
        headers: list[tuple[bytes, bytes]] | None = None,
        token: str | None = None,
        address: str = "127.0.0.1",
    ) -> Answer:
        """Send one request; ``body`` is JSON, or bytes as they are."""
        sent: list[MutableMapping[str, Any]] = []
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()

        coming = [{"type": "http.request", "body": content, "more_body": False}]

        async def receive() -> MutableMapping[str, Any]:
            if not coming:
                await asyncio.Event().wait()  # the client stays
            return coming.pop()

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        path, _, query = target.partition("?")
        given = [*LOCAL, JSON] if headers is None else headers
        if token is not None:
            given = [*given, (b"authorization", f"Bearer {token}".encode())]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "scheme": "http",
            "headers": given,
            "client": (address, 50_000),
            "server": ("127.0.0.1", 8401),
        }
        await self.app(scope, receive, send)
        found = dict(sent[0]["headers"])
        kind = found.get(b"content-type", b"").decode()
        answered = Answer(sent[0]["status"], kind, b"".join(message.get("body", b"") for message in sent[1:]), found)
        if method != "HEAD":
            openapi_check.hold(method, path, answered.status, kind, answered.body)
        return answered

    async def get(self, path: str, headers: list[tuple[bytes, bytes]] | None = None, *, method: str = "GET") -> Answer:
        return await self.ask(method, path, headers=LOCAL if headers is None else headers)


async def create(stage: Stage, name: object = "shop", **settings: Any) -> Any:
    answer = await stage.ask("POST", "/admin/tenants", {"name": name, **settings})
    assert answer.status == 201, answer.body
    return answer.json


def who(stage: Stage, key: str) -> str | None:
    """Whose key it is, as those who answer clients see it."""
    found = Classifier(stage.live.settings).identify(
        {b"host": b"localhost", b"authorization": f"Bearer {key}".encode()}
    )
    return getattr(found, "name", None)
