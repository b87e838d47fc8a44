from __future__ import annotations

from fractions import Fraction

import pytest

from tidegate.config import ConfigError, parse_settings
from tidegate.config.changes import needs_restart

MODELS = "models: [{name: m, backends: [{name: b, url: 'http://a'}]}]\n"


def test_a_cluster_needs_but_a_store() -> None:
    settings = parse_settings(MODELS + "cluster: {store: 'valkey://10.0.0.9:6379/0'}", source="f.yaml")
    cluster = settings.cluster
    assert cluster is not None
    assert (cluster.pool, cluster.replica, cluster.lease_ttl, cluster.on_store_loss) == ("default", None, 5.0, "keep")
    assert cluster.first_share == Fraction(1, 8)
    assert "10.0.0.9" not in repr(settings)


@pytest.mark.parametrize(
    "url", ["redis://h:1/0", "valkeys://h", "valkey+sentinel://a,b/main", "postgresql://u@h/d", "unix:///run/ledger"]
)
def test_stores_that_are_known(url: str) -> None:
    assert parse_settings(MODELS + f"cluster: {{store: '{url}'}}", source="f.yaml").cluster is not None


@pytest.mark.parametrize("url", ["", "http://h", "valkey://", "sqlite:///x"])
def test_other_stores_are_refused_without_showing_them(url: str) -> None:
    with pytest.raises(ConfigError, match="expected valkey://") as caught:
        parse_settings(MODELS + f"cluster: {{store: '{url}'}}", source="f.yaml")
    assert not url or url not in str(caught.value).partition("expected")[0]


def test_a_cluster_is_joined_at_the_start() -> None:
    before = parse_settings(MODELS, source="f.yaml")
    after = parse_settings(MODELS + "cluster: {store: 'valkey://h'}", source="f.yaml")
    assert needs_restart(before, after) == ["cluster"]


@pytest.mark.parametrize("lease", ["999ms", "0.4ms", "0"])
def test_a_lease_that_ends_between_two_heartbeats_is_refused(lease: str) -> None:
    """Every gateway would be taken for dead all the time, and its seats given away while they are used."""
    with pytest.raises(ConfigError, match=r"cluster\.lease_ttl: expected 1s or more"):
        parse_settings(MODELS + f"cluster: {{store: 'valkey://h', lease_ttl: {lease}}}", source="f.yaml")


def test_the_shortest_lease() -> None:
    cluster = parse_settings(MODELS + "cluster: {store: 'valkey://h', lease_ttl: 1s}", source="f.yaml").cluster
    assert cluster is not None
    assert cluster.lease_ttl == 1.0
