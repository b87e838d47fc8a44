from __future__ import annotations

import json

import pytest

from tidegate.cli._workers import ENVIRON, Worker, judge
from tidegate.config import ConfigError, Settings, parse_settings

MODELS = "models: [{name: m, backends: [{name: b, url: 'http://a'}]}]\n"


def settings(more: str = "") -> Settings:
    return parse_settings(MODELS + more, source="f.yaml")


def test_a_process_learns_once_which_worker_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRON, json.dumps({"index": 1, "count": 4, "listener": 7, "ledger": "/x"}))
    assert Worker.here() == Worker(1, 4, 7, "/x")
    assert Worker.here() is None


def test_a_worker_meets_the_others_in_its_parents_ledger() -> None:
    mine = Worker(2, 4, 7, "/run/x/ledger").settings(settings("control: {listen: '127.0.0.1:8401'}\n"))
    assert mine.control.listen.port == 8403
    assert mine.cluster is not None
    assert (mine.cluster.store, mine.cluster.replica) == ("unix:///run/x/ledger", "worker-2")
    assert mine.cluster.first_share * 4 == 1


def test_a_worker_on_any_port_takes_any_port() -> None:
    assert Worker(2, 4, 7, "/x").settings(settings("control: {listen: '127.0.0.1:0'}\n")).control.listen.port == 0


def test_with_a_store_of_their_own_workers_are_replicas_among_others() -> None:
    block = "cluster: {store: 'valkey://h:1', replica: east}\n"
    cluster = Worker(1, 2, 7, "").settings(settings(block)).cluster
    assert cluster is not None
    assert (cluster.store, cluster.replica) == ("valkey://h:1", "east-1")
    unnamed = Worker(1, 2, 7, "").settings(settings("cluster: {store: 'valkey://h:1'}\n")).cluster
    assert unnamed is not None
    assert unnamed.replica is None


@pytest.mark.parametrize("block", ["jobs: {}\n", "control: {store: 'sqlite:///c.db'}\n"])
def test_files_that_one_process_has_for_itself_are_refused(block: str) -> None:
    with pytest.raises(ConfigError, match="postgresql"):
        judge(settings(block))
    judge(settings())
