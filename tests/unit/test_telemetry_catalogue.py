from __future__ import annotations

import re
from pathlib import Path

from tidegate.core import BackendSpec, Policy, PoolSpec, Scheduler, Snapshot
from tidegate.stores.ledger_client import Counts
from tidegate.telemetry import Recorder
from tidegate.telemetry.catalogue import CATALOGUE, WORKER_UP, Kind, Metric
from tidegate.telemetry.collector import Collector

DOC = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
ALLOWED_LABELS = {"band", "model", "backend", "reason", "outcome", "kind", "victim", "by", "cause", "mode", "worker"}
POLICY = Policy(pools=(PoolSpec("m", (BackendSpec("b", 4),)),))


class Idle:
    def now(self) -> float:
        return 0.0

    def snapshot(self) -> Snapshot:
        return Scheduler(POLICY).snapshot(0.0)


def rows() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Rows of the tables in the reference page: name to kind and labels."""
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for line in DOC.read_text().splitlines():
        if row := re.match(r"\| `(tidegate_\w+)` \| (\w+) \| (.*?) \|", line):
            assert row[1] not in found
            found[row[1]] = (row[2], tuple(re.findall(r"`(\w+)`", row[3])))
    return found


def test_the_reference_page_lists_exactly_the_metrics_there_are() -> None:
    assert rows() == {metric.name: (metric.kind.value, metric.labels) for metric in CATALOGUE}


class NeverAsked:
    """A gateway that shares its pools, and has not begun."""

    degraded = False
    namesakes = differing = 0

    def counts(self) -> Counts:
        return Counts()


def test_the_collector_gives_exactly_the_catalogue() -> None:
    recorder = Recorder(POLICY)
    recorder.source = Idle()
    assert not any("store" in family.metric.name for family in Collector(recorder).collect())  # alone, there is none
    recorder.replica = NeverAsked()
    given = [family.metric.name for family in Collector(recorder).collect()]
    assert sorted(given) == sorted(metric.name for metric in CATALOGUE if metric is not WORKER_UP)


def test_names_and_labels_follow_the_rules() -> None:
    for metric in CATALOGUE:
        assert metric.name.startswith("tidegate_")
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
        assert set(metric.labels) <= ALLOWED_LABELS
        assert metric.help.endswith(".")


def test_metrics_named_anywhere_in_the_page_exist() -> None:
    names: dict[str, Metric] = {metric.name: metric for metric in CATALOGUE}
    for mention in re.findall(r"tidegate_\w+", DOC.read_text()):
        assert re.sub(r"_(bucket|sum|count)$", "", mention) in names
