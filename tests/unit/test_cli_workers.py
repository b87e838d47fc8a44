from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tidegate.cli import _worker_metrics
from tidegate.cli._worker_metrics import WorkerMetrics, merged
from tidegate.cli._workers import ENVIRON, Worker, judge
from tidegate.config import ConfigError, Settings, parse_settings
from tidegate.telemetry.catalogue import WORKER_UP

MODELS = "models: [{name: m, backends: [{name: b, url: 'http://a'}]}]\n"


def settings(more: str = "") -> Settings:
    return parse_settings(MODELS + more, source="f.yaml")


def test_a_process_learns_once_which_worker_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRON, json.dumps({"index": 1, "count": 4, "listener": 7, "ledger": "/x", "pages": "/y"}))
    assert Worker.here() == Worker(1, 4, 7, "/x", "/y")
    assert Worker.here() is None


def test_a_worker_meets_the_others_in_its_parents_ledger() -> None:
    mine = Worker(2, 4, 7, "/run/x/ledger", "/y").settings(settings("control: {listen: '127.0.0.1:8401'}\n"))
    assert mine.control.listen.port == 8403
    assert mine.cluster is not None
    assert (mine.cluster.store, mine.cluster.replica) == ("unix:///run/x/ledger", "worker-2")
    assert mine.cluster.first_share * 4 == 1


def test_a_worker_on_any_port_takes_any_port() -> None:
    assert Worker(2, 4, 7, "/x", "/y").settings(settings("control: {listen: '127.0.0.1:0'}\n")).control.listen.port == 0


def test_with_a_store_of_their_own_workers_are_replicas_among_others() -> None:
    block = "cluster: {store: 'valkey://h:1', replica: east}\n"
    cluster = Worker(1, 2, 7, "", "/y").settings(settings(block)).cluster
    assert cluster is not None
    assert (cluster.store, cluster.replica) == ("valkey://h:1", "east-1")
    unnamed = Worker(1, 2, 7, "", "/y").settings(settings("cluster: {store: 'valkey://h:1'}\n")).cluster
    assert unnamed is not None
    assert unnamed.replica is None


@pytest.mark.parametrize("block", ["jobs: {}\n", "control: {store: 'sqlite:///c.db'}\n"])
def test_files_that_one_process_has_for_itself_are_refused(block: str) -> None:
    with pytest.raises(ConfigError, match="postgresql"):
        judge(settings(block))
    judge(settings())


PAGE = b"""# HELP t_total Requests that ended.
# TYPE t_total counter
t_total{band="p0",model="a {b} c"} 3.0
t_total{band="p1",model="m"} 1e+06
# HELP t_now Now.
# TYPE t_now gauge
t_now 0.5
"""


def test_pages_of_workers_become_one_that_tells_them_apart() -> None:
    other = PAGE.replace(b"3.0", b"4.0").replace(b"t_now 0.5\n", b"t_now 1.5\n# TYPE t_more gauge\nt_more 1.0\n")
    assert merged({0: PAGE, 1: other, 2: None}).decode().splitlines() == [
        f"# HELP tidegate_worker_up {WORKER_UP.help}",
        "# TYPE tidegate_worker_up gauge",
        'tidegate_worker_up{worker="0"} 1',
        'tidegate_worker_up{worker="1"} 1',
        'tidegate_worker_up{worker="2"} 0',
        "# HELP t_total Requests that ended.",
        "# TYPE t_total counter",
        't_total{worker="0",band="p0",model="a {b} c"} 3.0',
        't_total{worker="0",band="p1",model="m"} 1e+06',
        't_total{worker="1",band="p0",model="a {b} c"} 4.0',
        't_total{worker="1",band="p1",model="m"} 1e+06',
        "# HELP t_now Now.",
        "# TYPE t_now gauge",
        't_now{worker="0"} 0.5',
        't_now{worker="1"} 1.5',
        "# TYPE t_more gauge",
        't_more{worker="1"} 1.0',
    ]


def test_a_page_of_workers_is_read_as_any_other() -> None:
    (up, total, now) = text_string_to_metric_families(merged({0: PAGE, 1: PAGE}).decode())
    assert (up.type, total.type, now.type) == ("gauge", "counter", "gauge")
    assert sum(sample.value for sample in total.samples if sample.labels["band"] == "p0") == 6
    assert {sample.labels["worker"] for sample in now.samples} == {"0", "1"}
    assert {sample.labels.get("model") for sample in total.samples} == {"a {b} c", "m"}


def test_the_first_worker_asks_the_others_and_waits_for_none_that_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_worker_metrics, "PATIENCE_S", 1.0)

    async def story() -> str:
        first, second = (WorkerMetrics(str(tmp_path), index, 4) for index in (0, 1))
        (tmp_path / "metrics-1").write_text("left by a process that was killed")
        assert await second.page_of(lambda: PAGE)() == PAGE
        await second.start()
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(str(tmp_path / "metrics-2"))
            silent.listen()
            page = await first.page_of(lambda: PAGE)()
        second.close()
        return page.decode()

    page = asyncio.run(story())
    up = [line for line in page.splitlines() if line.startswith("tidegate_worker_up{")]
    assert [line[-1] for line in up] == ["1", "1", "0", "0"]
    assert 't_now{worker="1"} 0.5' in page


def test_the_loop_turns_between_the_pages_of_two_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turn, added = 0, list[int]()
    monkeypatch.setattr(_worker_metrics.Merged, "add", lambda *_: added.append(turn))

    async def story() -> None:
        nonlocal turn
        asking = asyncio.ensure_future(WorkerMetrics(str(tmp_path), 0, 5).page_of(lambda: PAGE)())
        while not asking.done():
            turn += 1
            await asyncio.sleep(0)

    asyncio.run(story())
    assert len(set(added)) == 5
