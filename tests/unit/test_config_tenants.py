"""Tenants that no file holds, and what differs between two settings."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.config import (
    ConfigError,
    differences,
    key_digest,
    needs_restart,
    parse_settings,
    read_tenant,
    replace_tenants,
    tenant_document,
)

BANDS = ("p0", "p1", "p2")
A, B = key_digest("a"), key_digest("b")
FILE = 'models: [{name: m, backends: [{name: b, url: "http://b:1", seats: 1, api_key: hunter2}]}]\n'
TENANTS = f"tenants: [{{name: shop, keys: ['{A}'], band: p0}}]\n"


def test_a_tenant_is_written_and_read_again() -> None:
    value = {"band": "p1", "max_band": "p0", "weight": 2.5, "limits": {"max_running": 3}, "trusted": True}
    tenant = read_tenant("shop", value, (A, B), bands=BANDS)
    assert (tenant.name, tenant.keys, tenant.limits.max_running) == ("shop", (A, B), 3)
    shown = tenant_document(tenant)
    assert shown["keys"] == [A[7:19], B[7:19]]
    del shown["keys"]
    assert read_tenant("shop", shown, (), bands=BANDS) == tenant.model_copy(update={"keys": ()})


def test_a_tenant_is_changed_key_by_key() -> None:
    over = {"band": "p1", "max_band": "p1", "weight": 2.0, "limits": {"max_running": 3, "max_queued": 4}}
    tenant = read_tenant("shop", {"limits": {"max_running": None}, "weight": 3}, (), bands=BANDS, over=over)
    assert (tenant.weight, tenant.limits.max_running, tenant.limits.max_queued) == (3, None, 4)


@pytest.mark.parametrize(
    ("name", "value", "path", "words"),
    [
        ("shop", {"band": "p7"}, "band", "expected a band, one of p0, p1, p2"),
        ("shop", {"wieght": 1}, "wieght", "unknown setting"),
        ("shop", {"zzz": 1}, "zzz", "unknown setting; a tenant takes name, keys, band"),
        ("shop", {"limits": {"max_running": 0}}, "limits.max_running", "expected a whole number"),
        ("shop", {"keys": []}, "keys", "expected no such setting here"),
        ("shop", {"limits": 3}, "limits", "expected a mapping"),
        ("a b", {}, "name", "expected a name"),
        (7, {}, None, ""),
        (None, {}, "name", "expected"),
    ],
)
def test_what_does_not_fit_is_refused_at_its_place(name: Any, value: Any, path: str | None, words: str) -> None:
    if path is None:
        assert read_tenant(name, value, (), bands=BANDS).name == "7"
        return
    with pytest.raises(ConfigError) as raised:
        read_tenant(name, value, (), bands=BANDS)
    (problem,) = raised.value.errors
    assert problem.path == path
    assert problem.expected.startswith(words)


def test_tenants_are_judged_with_the_rest() -> None:
    settings = parse_settings(FILE + TENANTS)
    other = read_tenant("other", {"band": "p0", "max_band": "p1"}, (B,), bands=BANDS)
    with pytest.raises(ConfigError, match=r"tenants\[1\]\.max_band"):
        replace_tenants(settings, (*settings.tenants, other))
    twice = read_tenant("other", {}, (A,), bands=BANDS)
    with pytest.raises(ConfigError, match=r"tenants\[1\]\.keys"):
        replace_tenants(settings, (*settings.tenants, twice))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("", TENANTS, ("tenants.shop", None, {"band": "p0", "keys": [A[7:19]], "weight": 1})),
        (TENANTS, TENANTS.replace("p0", "p1"), ("tenants.shop.band", "p0", "p1")),
        (TENANTS, TENANTS.replace(A, B), ("tenants.shop.keys", [A[7:19]], [B[7:19]])),
        ("", "rules: [{when: {path: /v1/x}, band: p1}]", ("rules", [], [{"band": "p1"}])),
        ("", "modes: {night: {admit: [p0]}}", ("modes.night", None, {"admit": ["p0"]})),
        ("", "objectives: {gold: p0}", ("objectives.gold", None, "p0")),
        ("", "anonymous: {band: p2}", ("anonymous.band", "p1", "p2")),
        ("", "gateway: {silence_timeout: 2min}", ("gateway.silence_timeout", "1min", "2min")),
        ("", f"control: {{operators: [{{name: d, token: '{A}'}}]}}",
         ("control.operators.d", None, {"role": "viewer", "token": A[7:19]})),
    ],
)  # fmt: skip
def test_differences_are_named_and_show_no_secret(before: str, after: str, expected: tuple[str, Any, Any]) -> None:
    one, other = parse_settings(FILE + before), parse_settings(FILE + after)
    found = [row for row in differences(one, other) if row[0].startswith(expected[0])]
    ((path, old, new),) = found
    assert (path, old) == expected[:2]
    if isinstance(new, dict):
        assert expected[2].items() <= new.items()
    elif isinstance(new, list) and isinstance(new[0], dict):
        assert expected[2][0].items() <= new[0].items()
    else:
        assert new == expected[2]
    assert "sha256:" not in str(found)


def test_a_model_that_comes_or_goes_is_named() -> None:
    more = 'models: [{name: m, backends: [{name: b, url: "http://b:1"}]}, {name: n, aliases: [o], backends: [{url: "http://c:1"}]}]'
    one, other = parse_settings(FILE), parse_settings(more)
    found = {path: (old, new) for path, old, new in differences(one, other)}
    assert set(found) == {"models.m.backends.b.seats", "models.n"}
    assert found["models.n"][0] is None
    assert found["models.n"][1]["aliases"] == ["o"]
    assert "hunter2" not in str(found)


def test_a_credential_alone_is_a_difference_that_shows_nothing() -> None:
    one, other = parse_settings(FILE), parse_settings(FILE.replace("hunter2", "hunter3"))
    assert differences(one, other) == [("models", "…", "…")]


def test_what_a_running_gateway_takes_of_its_ports() -> None:
    live = "gateway: {max_connections_per_tenant: 5, queue_heartbeat_after: 3s, silence_timeout: 9s, drain_timeout: 1s}"
    assert needs_restart(parse_settings(FILE), parse_settings(FILE + live)) == []
    not_live = "gateway: {max_connections: 5, max_body: 1MiB}\ncontrol: {store: 'sqlite:///x'}"
    assert needs_restart(parse_settings(FILE), parse_settings(FILE + not_live)) == [
        "gateway.max_body",
        "gateway.max_connections",
        "control.store",
    ]
