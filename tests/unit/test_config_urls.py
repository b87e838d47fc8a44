"""A URL that nobody could ever use is refused with its line, and with the part of it that is wrong."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.config import ConfigError, parse_settings
from tidegate.config.urls import parse_ledger_url, parse_store_url
from tidegate.config.values import ExpectedError
from tidegate.stores import StoreError
from tidegate.stores.open_ledger import open_ledger

MODELS = "models:\n- name: m\n  backends:\n  - {name: b, url: 'http://a'}\n"

LEDGERS = [  # the URL, what was expected, what came, the nearest
    ("valkey://h:6379/zero", "expected the number of a database", "'zero'", None),
    ("valkey://h:6379/-1", "expected the number of a database", "'-1'", None),
    ("redis://h/0/1", "expected the number of a database", "'0/1'", None),
    ("redis://h/²", "expected the number of a database", "'²'", None),
    ("valkey://h:99999", "expected a port from 1 to 65535", "'99999'", None),
    ("valkey://h:0/1", "expected a port from 1 to 65535", "'0'", None),
    ("valkey://h:", "expected a port from 1 to 65535", "''", None),
    ("valkey://h:port", "expected a port from 1 to 65535", "'port'", None),
    ("valkey+cluster://a:1,b:70000", "expected a port from 1 to 65535", "'70000'", None),
    ("valkey+sentinel://h1,h2", "the name by which Sentinel knows it", "no service", None),
    ("valkey+sentinel://h1,h2/", "the name by which Sentinel knows it", "no service", None),
    ("valkey+sentinel://h1,h2/main/two", "expected the number of a database", "'two'", None),
    ("valkey+cluster://h1,h2/3", "expected no database but 0", "'3'", None),
    ("valkey://h1,h2", "expected one host", "2 hosts", None),
    ("valkey://:6379", "each with a name or an address", "no host", None),
    ("valkey+cluster://h1,,h2", "each with a name or an address", "no host", None),
    ("valkey://h*:1", "each with a name or an address", "'h*:1'", None),
    ("valkey://h?db=3", "expected no option but those known, none", "'db'", None),
    ("valkeys://h?ssl_ca_cert=/x", "ssl_ca_certs", "'ssl_ca_cert'", "ssl_ca_certs"),
    ("valkey://h#x", "expected no fragment", "a value that is not shown", None),
    ("valky://h:6379", "expected valkey://", "valky://", "valkey://"),
    ("Redis://h:6379", "expected valkey://", "Redis://", "redis://"),
    ("valkey+sentinal://h/main", "expected valkey://", "valkey+sentinal://", "valkey+sentinel://"),
    ("postgres+psycopg://h/d", "expected valkey://", "postgres+psycopg://", None),
    ("http://h", "expected valkey://", "http://", None),
    ("memory://", "expected valkey://", "memory://", None),
    ("10.0.0.9:6379", "expected valkey://", "no scheme", None),
    ("valkey://", "expected valkey://", "valkey://", None),
    ("unix://run/ledger", "with three slashes", "a value that is not shown", "unix:///run/ledger"),
    ("unix:///", "with three slashes", "a value that is not shown", None),
    ("unix:///run/x?mode=1", "without options", "/run/x?mode=1", None),
    (f"unix:///{'x' * 120}", "at most 107 bytes", "121 bytes", None),
    ("postgresql://u@h:99999/d", "expected a port from 1 to 65535", "'99999'", None),
    ("postgresql://h/d?port=x", "expected a port from 1 to 65535", "'x'", None),
    ("postgresql://u@h/d?sslmod=require", "one of PostgreSQL", "'sslmod'", "sslmode"),
    ("postgresql://u@h/d?sslmode=requires", "expected an sslmode of", "'requires'", "require"),
]
STORES = [
    ("sqlite://jobs.db", "expected sqlite:///PATH, with three slashes", "a value that is not shown", None),
    ("sqlite:///", "expected a path after sqlite:///", "a value that is not shown", None),
    ("sqlite:///jobs.db?timeout=5", "without options", "a value that is not shown", None),
    ("sqlit:///jobs.db", "expected sqlite:///PATH or postgresql://", "sqlit://", "sqlite://"),
    ("postgresqll://h/d", "expected sqlite:///PATH or postgresql://", "postgresqll://", "postgresql://"),
    ("valkey://h", "expected sqlite:///PATH or postgresql://", "valkey://", None),
    ("postgresql://h:99999/d", "expected a port from 1 to 65535", "'99999'", None),
    ("postgresql://h/d?sslmod=x", "one of PostgreSQL", "'sslmod'", "sslmode"),
]
UPSTREAMS = [
    ("http://a:99999", "expected a port from 1 to 65535", "'99999'", None),
    ("http://a:0", "expected a port from 1 to 65535", "'0'", None),
    ("http://a:80b", "expected a port from 1 to 65535", "'80b'", None),
    ("htpp://a:8000", "expected a", "'htpp://a:8000'", "http://"),
    ("httpss://a", "expected a", "'httpss://a'", "https://"),
]
PLACES = [
    *(("cluster.store", f"cluster:\n  store: '{url}'", 6, *rest) for url, *rest in LEDGERS),
    *(("jobs.store", f"jobs:\n  store: '{url}'", 6, *rest) for url, *rest in STORES),
    *(("control.store", f"control:\n  store: '{url}'", 6, *rest) for url, *rest in STORES),
    *(("traces.endpoint", f"traces:\n  endpoint: '{url}'", 6, *rest) for url, *rest in UPSTREAMS),
    *(("models[0].backends[1].url", f"  - {{name: c, url: '{url}'}}", 5, *rest) for url, *rest in UPSTREAMS),
    *(
        ("models[0].backends[1].metrics_url", f"  - {{url: 'http://c', metrics_url: '{url}'}}", 5, *rest)
        for url, *rest in UPSTREAMS
    ),
]


@pytest.mark.parametrize(("path", "text", "line", "expected", "came", "near"), PLACES)
def test_what_is_wrong_is_named(path: str, text: str, line: int, expected: str, came: str, near: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_settings(MODELS + text, source="f.yaml")
    [problem] = caught.value.errors
    assert (problem.path, problem.line, problem.came, problem.nearest) == (path, line, came, near)
    assert expected in problem.expected


@pytest.mark.parametrize(
    "url",
    [
        "redis://h:1/0",
        "valkeys://h?ssl_ca_certs=/ca.pem",
        "redis://user:p%40ss@[::1]:6379",
        "redis://:word@h",
        "redis+sentinel://one,two:26380/main/2",
        "valkey+cluster://one,two:7000/0",
        "unix:///run/ledger",
        "postgresql:///d",
        "postgresql://u:p%2Fw@h1:5432,h2/d?sslmode=verify-full&target_session_attrs=read-write",
        "postgresql://%2Fvar%2Frun%2Fpostgresql/d",
        "postgres://h",
    ],
)
def test_what_can_be_used_is_taken(url: str) -> None:
    assert parse_ledger_url(url) == url


@pytest.mark.parametrize(
    "url", ["sqlite:///x.db", "sqlite:////var/lib/a b.db", "sqlite:///:memory:", "postgresql:///d"]
)
def test_stores_that_can_be_used_are_taken(url: str) -> None:
    assert parse_store_url(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "valkey://u:hunter2@h:99999",
        "valkey://u:hun/ter2@h:6379",
        "valkey://u:hunter2@a/b@h",
        "valkey://:hunter2#@h",
        "valky://u:hunter2@h",
        "valkey://u:[hunter2@h",
        "valkey+sentinel://u:hunter2@h",
        "postgresql://u:hunter2@h/d?sslmod=x",
        "postgresql://u:1/hunter2@h/d",
        "unix://u:hunter2@h/x",
    ],
)
def test_no_password_is_shown(url: str) -> None:
    for text in (f"cluster: {{store: '{url}'}}", f"jobs: {{store: '{url}'}}", f"traces: {{endpoint: '{url}'}}"):
        with pytest.raises(ConfigError) as caught:
            parse_settings(MODELS + text)
        assert not any(part in str(caught.value) for part in ("hunter2", "hun", "ter2"))


@pytest.mark.parametrize("url", ["http://u:80/hunter2@h", "http://hunter2@h", "https://u:hunter2@h:99999/"])
def test_no_password_of_an_upstream_is_shown(url: str) -> None:
    for text in (f"  - {{name: c, url: '{url}'}}", f"  - {{url: 'http://c', metrics_url: '{url}'}}"):
        with pytest.raises(ConfigError, match="without a user or password") as caught:
            parse_settings(MODELS + text)
        assert "hunter2" not in str(caught.value)


SCHEMES = ["valkey", "valkeys+sentinel", "redis+cluster", "unix", "postgresql", "sqlite"]


@settings(deadline=None)
@given(st.text(max_size=30), st.sampled_from(SCHEMES))
def test_whatever_stands_there_is_taken_or_refused(rest: str, scheme: str) -> None:
    url = f"{scheme}://{rest}"
    for parse in (parse_ledger_url, parse_store_url):
        with contextlib.suppress(ExpectedError):
            assert parse(url) == url.strip()


PIECES = ["h", "h2", ",", ":", "6379", "99999", "/", "0", "main", "zero", "?", "ssl_ca_certs=x", "u:p@", "[::1]", "#"]


@settings(deadline=None)
@given(
    st.sampled_from(["valkey", "rediss", "valkey+sentinel", "valkeys+cluster", "unix"]),
    st.lists(st.sampled_from(PIECES), max_size=7),
)
def test_what_a_file_may_say_can_be_opened(scheme: str, pieces: list[str]) -> None:
    pytest.importorskip("valkey")
    url = f"{scheme}://{''.join(pieces)}"
    try:
        parse_ledger_url(url)
    except ExpectedError:
        return
    try:
        assert open_ledger(url) is not None
    except StoreError as error:
        pytest.fail(f"{url} is taken by the file and refused at the start: {error}")
