"""The compose file's parts, run as processes by the very files that are shipped, do what its page promises."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from deploy.compose_stage import DEPLOY, GATEWAYS, HAPROXY, PROMETHEUS, Stack, ask, chat, prometheus, stack, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.services,
    pytest.mark.timeout(90),  # a dozen processes start first
    pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed (Debian and Ubuntu: package haproxy)"),
]

NOT_HERE = {
    "p0 refused by us",
    "Refusals by band",
    "Refusals by reason",
    "What observe let through",
    "Budget left",
    "Stopped for a higher band, and tokens wasted",
}
"""Panels of the Grafana dashboard for what does not happen in this file."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with stack(tmp_path_factory.mktemp("stack")) as found:
        yield found


@contextlib.contextmanager
def begun(where: Stack, key: str, body: dict[str, object]) -> Iterator[http.client.HTTPConnection]:
    """Send a request through the balancer and do not read its answer; hang up at the end."""
    connection = http.client.HTTPConnection(urlsplit(where.url).netloc, timeout=30)
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        yield connection
    finally:
        connection.close()


def test_all_gateways_are_one_pool_for_the_operator(running: Stack) -> None:
    def names() -> set[str]:
        (pool,) = ask(f"{running.control}/admin/state", running.duty)["cluster"]["pools"].values()
        return {row["name"] for row in pool["replicas"]} if pool["standing"] == "shared" else set()

    assert len(until(lambda: len(names()) == GATEWAYS and names())) == GATEWAYS


def test_a_stream_comes_piece_by_piece(running: Stack) -> None:
    with begun(running, running.checkout, chat(100, stream=True)) as connection, connection.getresponse() as answer:
        assert answer.status == 200
        times = [time.monotonic() for line in answer if line.startswith(b"data: {")]
    assert len(times) > 50
    assert times[-1] - times[0] > 0.1, "the balancer held the pieces back"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_seat(running: Stack, *, stream: bool) -> None:
    with begun(running, running.analytics, chat(20_000, stream=stream)):
        until(lambda: running.running() == 1)
    until(lambda: running.running() == 0, 20.0)


def test_requests_are_spread_over_the_gateways(running: Stack) -> None:
    before = [each.total("tidegate_dispatch_total") for each in running.gateways]
    for _ in range(12):
        ask(f"{running.url}/v1/chat/completions", running.checkout, chat(1))
    after = [each.total("tidegate_dispatch_total") for each in running.gateways]
    assert all(now > then for then, now in zip(before, after, strict=True))


def test_a_batch_is_answered(running: Stack) -> None:
    row = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": chat(2)}
    boundary = "b0undary"
    form = (
        f'--{boundary}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{boundary}\r\ncontent-disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
        f"{json.dumps(row)}\r\n--{boundary}--\r\n"
    )
    headers = {
        "authorization": f"Bearer {running.analytics}",
        "content-type": f"multipart/form-data; boundary={boundary}",
    }
    upload = urllib.request.Request(f"{running.url}/v1/files", form.encode(), headers)
    with urllib.request.urlopen(upload, timeout=40) as answer:
        file = json.load(answer)
    wish = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = ask(f"{running.url}/v1/batches", running.analytics, wish)
    ended = ask(f"{running.url}/v1/batches/{batch['id']}?wait=30s", running.analytics)
    assert ended["status"] == "completed"
    assert ended["request_counts"] == {"total": 1, "completed": 1, "failed": 0}


def drawn() -> dict[str, list[str]]:
    """What the Grafana dashboard asks for, by panel, as Grafana would ask it."""
    panels = json.loads((DEPLOY / "grafana" / "tidegate.json").read_text(encoding="utf-8"))["panels"]
    return {
        panel["title"]: [
            target["expr"].replace("$instance", ".*").replace("$__rate_interval", "10s") for target in panel["targets"]
        ]
        for panel in panels
        if panel["type"] != "row"
    }


@pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed (Debian and Ubuntu: package prometheus)")
def test_prometheus_finds_all_gateways_and_no_alert(running: Stack, tmp_path_factory: pytest.TempPathFactory) -> None:
    for key in (running.checkout, running.analytics):
        ask(f"{running.url}/v1/chat/completions", key, chat(1))
    with prometheus(tmp_path_factory.mktemp("prometheus"), running.gateways) as url:

        def found(query: str) -> Any:
            return ask(f"{url}/api/v1/query?{urlencode({'query': query})}")["data"]["result"]

        until(lambda: (up := found('sum(up{job="tidegate"})')) and up[0]["value"][1] == str(GATEWAYS))
        until(lambda: found("rate(tidegate_store_calls_total[10s])"))  # two scrapes

        def empty() -> set[str]:
            return {title for title, queries in drawn().items() if not any(map(found, queries))}

        until(lambda: empty() <= NOT_HERE)
        rules = [rule for group in ask(f"{url}/api/v1/rules")["data"]["groups"] for rule in group["rules"]]
        assert {rule["name"] for rule in rules} >= {"TidegateGone", "TidegateStoreAway"}
        assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []


@pytest.fixture
def ending(tmp_path: Path) -> Iterator[Stack]:
    """A stack of its own, for who ends some of it."""
    with stack(tmp_path) as found:
        yield found


def test_a_rolling_update_loses_no_request(ending: Stack) -> None:
    """What streams at a gateway that leaves goes on to its end, and what comes meanwhile goes elsewhere."""
    failed: list[object] = []
    over = threading.Event()

    def others() -> None:
        while not over.is_set():
            try:
                ask(f"{ending.url}/v1/chat/completions", ending.checkout, chat(1))
            except OSError as error:
                failed.append(error)

    clients = [threading.Thread(target=others) for _ in range(4)]
    leaving = ending.gateways[0]
    with contextlib.ExitStack() as open_streams:
        streams = [open_streams.enter_context(begun(ending, ending.checkout, chat(400, stream=True))) for _ in range(6)]
        answers = [open_streams.enter_context(each.getresponse()) for each in streams]
        for client in clients:
            client.start()
        assert leaving.total("tidegate_running") > 0
        leaving.signal(signal.SIGTERM)
        assert leaving.wait(30.0) == 0
        time.sleep(0.5)
        over.set()
        for client in clients:
            client.join()
        assert [answer.read()[-14:].strip() for answer in answers] == [b"data: [DONE]"] * 6
    assert failed == []
