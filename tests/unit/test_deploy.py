"""Grafana dashboard and alert rules name only what the gateway shows; promtool runs the rules' own tests."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidegate.core import Reason
from tidegate.telemetry.catalogue import CATALOGUE, Kind

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = DEPLOY / "grafana" / "tidegate.json"
RULES = DEPLOY / "prometheus" / "tidegate-alerts.yaml"
RULE_TESTS = DEPLOY / "prometheus" / "tidegate-alerts.test.yaml"
METRICS = {metric.name: metric for metric in CATALOGUE}
SCRAPED = {"instance", "job"}
"""Labels that Prometheus adds."""


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def expressions() -> Iterator[Any]:
    for panel in panels():
        for target in panel["targets"]:
            yield pytest.param(target["expr"], id=f"{panel['title']}-{target['refId']}")
    for rule in rules():
        yield pytest.param(rule["expr"], id=rule["alert"])


def labels_of(name: str) -> set[str]:
    plain = re.sub(r"_(bucket|sum|count)$", "", name)
    metric = METRICS.get(name) or METRICS.get(plain)
    assert metric is not None, f"no metric is called {name}"
    assert (name != plain and metric.name == plain) == (metric.kind is Kind.HISTOGRAM), f"{name} is a {metric.kind}"
    return {*metric.labels, *SCRAPED, *(["le"] if name.endswith("_bucket") else [])}


@pytest.mark.parametrize("expression", list(expressions()))
def test_an_expression_names_metrics_and_labels_that_exist(expression: str) -> None:
    used: set[str] = set()
    found = re.findall(r"(tidegate_\w+)(?:\{([^}]*)\})?", expression)
    assert found
    for name, selector in found:
        labels = labels_of(name)
        used |= labels
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)) <= labels
    for group in re.findall(r"\b(?:by|on|ignoring)\s*\(([^)]*)\)", expression):
        assert {label.strip() for label in group.split(",")} <= used


def test_reasons_that_are_named_exist() -> None:
    reasons = {reason.value for reason in Reason}
    for expression in (parameter.values[0] for parameter in expressions()):
        for listed in re.findall(r'reason[!=]~"([^"]*)"', expression):
            assert set(listed.split("|")) <= reasons


def test_the_dashboard_shows_everything_that_the_contract_lists() -> None:
    shown = {
        name
        for panel in panels()
        for target in panel["targets"]
        for name in re.findall(r"tidegate_\w+", target["expr"])
    }
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    assert set(CONTRACT) <= shown


def test_panels_do_not_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    numbers = [panel["id"] for panel in panels()]
    assert len(numbers) == len(set(numbers))


def test_every_alert_says_what_and_how_bad() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert re.fullmatch(r"Tidegate[A-Z]\w+", rule["alert"])


def test_every_alert_has_a_test_that_rings_it_and_one_that_does_not() -> None:
    text = RULE_TESTS.read_text(encoding="utf-8")
    for rule in rules():
        assert f"alertname: {rule['alert']}, exp_alerts: []" in text
        assert f'alertname="{rule["alert"]}"' in text or f"alertname: {rule['alert']}\n" in text


PROMTOOL = shutil.which("promtool")


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian and Ubuntu: package prometheus)")
@pytest.mark.parametrize("words", [("check", "rules", str(RULES)), ("test", "rules", str(RULE_TESTS))], ids="-".join)
def test_promtool_finds_the_rules_right(words: tuple[str, ...]) -> None:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *words], capture_output=True, text=True, timeout=40)
    assert done.returncode == 0, done.stdout + done.stderr


CONTRACT = {
    "tidegate_requests_total": ("band", "model", "outcome"),
    "tidegate_refusals_total": ("band", "reason"),
    "tidegate_queue_depth": ("band",),
    "tidegate_queue_depth_max": ("band",),
    "tidegate_queue_wait_seconds": ("band",),
    "tidegate_ttft_seconds": ("band",),
    "tidegate_request_seconds": ("band",),
    "tidegate_running": ("band", "backend"),
    "tidegate_seats": ("backend",),
    "tidegate_oldest_wait_seconds": ("band",),
    "tidegate_dispatch_total": ("band",),
    "tidegate_overtakes_total": ("band",),
    "tidegate_promotions_total": ("band",),
    "tidegate_inheritances_total": (),
    "tidegate_preemptions_total": ("victim", "by"),
    "tidegate_wasted_tokens_total": ("cause",),
    "tidegate_tokens_total": ("band", "kind"),
    "tidegate_backend_kv_free_ratio": ("backend",),
    "tidegate_backend_stale": ("backend",),
    "tidegate_budget_level": ("backend",),
    "tidegate_mode": ("mode",),
    "tidegate_clamped_total": ("band",),
}
"""What users' own dashboards may rely on: names and labels, word for word."""


def test_the_metrics_that_users_rely_on_are_there() -> None:
    assert {name: METRICS[name].labels for name in CONTRACT} == CONTRACT


def test_no_metric_has_a_label_for_tenants_or_requests() -> None:
    labels = {label for metric in CATALOGUE for label in metric.labels}
    assert not labels & {"tenant", "flow", "request", "request_id", "key", "user"}
