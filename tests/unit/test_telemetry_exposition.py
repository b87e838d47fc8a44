from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as TheirFamily
from prometheus_client.registry import Collector

from tidegate.telemetry.catalogue import Kind, Metric
from tidegate.telemetry.exposition import Family, bucket_series, page, series

SPENT = Metric("tidegate_spent_total", Kind.COUNTER, ("model", "band"), "What was spent.")
LEVEL = Metric("tidegate_level", Kind.GAUGE, (), "How full it is.")
WAIT = Metric("tidegate_wait_seconds", Kind.HISTOGRAM, ("worker", "cause"), "How long it took.")
EDGES = (0.001, 0.25, 1.0, 7200.0)

NUMBERS = [0, 1, 7.5, 1e-5, 0.1 + 0.2, 999_999, 1_000_000, 1_234_567, 1e15 + 0.5, 123_456_789_012, 1e21, 1.5e300]
NUMBERS += [-3, -2_000_000, float("inf"), float("-inf"), float("nan")]


class Theirs(Collector):
    """The same numbers as prometheus-client has them."""

    def __init__(self, number: float, labels: tuple[str, str]) -> None:
        self._number = number
        self._labels = labels

    def collect(self) -> Iterator[TheirFamily]:
        number = self._number
        spent = CounterMetricFamily("tidegate_spent", SPENT.help, labels=SPENT.labels)
        spent.add_metric(self._labels, number)
        yield spent
        yield GaugeMetricFamily(LEVEL.name, LEVEL.help, number)
        wait = TheirFamily(WAIT.name, WAIT.help, "histogram")
        for edge in (*map(str, EDGES), "+Inf"):
            wait.add_sample(f"{WAIT.name}_bucket", dict(zip(WAIT.labels, self._labels, strict=True)) | {"le": edge}, 1)
        for end, value in (("count", 1), ("sum", number)):
            wait.add_sample(f"{WAIT.name}_{end}", dict(zip(WAIT.labels, self._labels, strict=True)), value)
        yield wait


def ours(number: float, labels: tuple[str, str]) -> bytes:
    wait = [*zip(bucket_series(WAIT.name, WAIT.labels, labels, EDGES), [1] * 6 + [number], strict=True)]
    spent = Family(SPENT, [(series(SPENT.name, SPENT.labels, labels), number)])
    return page([spent, Family(LEVEL, [(series(LEVEL.name, (), ()), number)]), Family(WAIT, wait)])


def theirs(number: float, labels: tuple[str, str]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Theirs(number, labels))
    return re.sub(rb"e\+0(\d\d)\n", rb"e+\1\n", generate_latest(registry))  # three digits in releases before 0.24


@pytest.mark.parametrize("number", NUMBERS)
def test_a_page_is_what_prometheus_client_would_write(number: float) -> None:
    assert ours(number, ("llama", "p0")) == theirs(number, ("llama", "p0"))


@pytest.mark.parametrize("name", ['a "model"', "a\\b", "two\nlines", "\\n", "大模型", "", "{}=,"])
def test_a_label_may_hold_anything(name: str) -> None:
    assert ours(1, (name, "p0")) == theirs(1, (name, "p0"))
