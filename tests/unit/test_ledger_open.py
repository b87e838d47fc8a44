"""Which store a URL names, and what is said about one that cannot be."""

from __future__ import annotations

import sys

import pytest

from tidegate.stores import StoreError
from tidegate.stores.ledger_memory import MemoryLedgerStore
from tidegate.stores.ledger_socket import SocketLedgerStore
from tidegate.stores.open_ledger import open_ledger


def test_stores_that_need_nothing() -> None:
    assert isinstance(open_ledger("memory://"), MemoryLedgerStore)
    assert isinstance(open_ledger("unix:///run/tidegate/ledger"), SocketLedgerStore)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("sqlite:///x.db", "expected memory://.*got 'sqlite'"),
        ("10.0.0.9", "no scheme"),
        ("unix://run/ledger", "three slashes"),
        ("valkey://[::1", "cannot be read"),
    ],
)
def test_a_url_that_nobody_knows(url: str, why: str) -> None:
    with pytest.raises(StoreError, match=why):
        open_ledger(url)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("valkey://host:port", "host:port"),
        ("valkey://host/name", "number of a database"),
        ("valkey://host?ssl_ca_certs=x", "unknown option 'ssl_ca_certs'"),
        ("rediss://host?ssl_ca=x", "unknown option 'ssl_ca'; known with TLS: ssl_ca_certs"),
        ("valkey+sentinel://host", "name of the service"),
    ],
)
def test_what_is_wrong_with_a_url_for_valkey(url: str, why: str) -> None:
    pytest.importorskip("valkey")
    with pytest.raises(StoreError, match=why):
        open_ledger(url)


@pytest.mark.parametrize(
    "url",
    [
        "valkey://host:6379/0",
        "redis://user:p%40ss@[::1]:6379",
        "valkeys://host?ssl_ca_certs=/ca.pem",
        "redis+sentinel://one,two:26380/main/2",
        "valkey+cluster://one,two:7000",
        "valkeys+cluster://one",
    ],
)
def test_nothing_is_connected_before_the_first_call(url: str) -> None:
    pytest.importorskip("valkey")
    assert open_ledger(url).pool("a") is not None


@pytest.mark.parametrize(
    ("url", "driver", "extra"),
    [("valkey://host", "valkey", "valkey"), ("postgresql:///db", "psycopg", "postgres")],
)
def test_a_driver_that_is_missing(monkeypatch: pytest.MonkeyPatch, url: str, driver: str, extra: str) -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] == driver:
            monkeypatch.setitem(sys.modules, name, None)
        elif name.startswith(("tidegate.stores.ledger_valkey", "tidegate.stores.ledger_postgres")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(StoreError, match=rf"pip install 'tidegate\[{extra}\]'"):
        open_ledger(url)
