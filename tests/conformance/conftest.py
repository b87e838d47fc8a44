"""The stores that the conformance suites run over. Every case has the same id on all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conformance.ledger_stage import KINDS, Stage, make_stage
from tidegate.stores import JobStore, KnobStore, open_job_store, open_knob_store
from tidegate.testing.postgres import PostgresProcess, postgres_process
from tidegate.testing.valkey import ValkeyProcess, valkey_process

_DURABLE = ["sqlite", pytest.param("postgres", marks=pytest.mark.services)]


@dataclasses.dataclass
class JobStorePlace:
    """Where a store's data lives: it can be opened more than once, and again after a crash."""

    url: str
    opened: list[JobStore] = dataclasses.field(default_factory=list)

    def open(self) -> JobStore:
        store = open_job_store(self.url)
        self.opened.append(store)
        return store


@dataclasses.dataclass
class KnobStorePlace:
    """The same for a control store."""

    url: str
    opened: list[KnobStore] = dataclasses.field(default_factory=list)

    def open(self) -> KnobStore:
        store = open_knob_store(self.url)
        self.opened.append(store)
        return store


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresProcess]:
    with postgres_process() as server:
        yield server


@pytest.fixture(scope="session")
def empty_postgres(postgres: PostgresProcess) -> Callable[[], str]:
    """Empties the database and returns its URL."""
    import psycopg

    def empty() -> str:
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute("SET client_min_messages = error")
            connection.execute("DROP SCHEMA IF EXISTS tidegate CASCADE")
        return postgres.url

    return empty


def _place(kind: str, request: pytest.FixtureRequest) -> Iterator[JobStorePlace]:
    place = JobStorePlace(_url(kind, request, "jobs.db"))
    yield place
    for store in place.opened:
        store.close()


@pytest.fixture(params=_DURABLE)
def place(request: pytest.FixtureRequest) -> Iterator[JobStorePlace]:
    """A durable store that a test opens as often as it likes."""
    yield from _place(request.param, request)


@pytest.fixture(params=["memory", *_DURABLE])
def store(request: pytest.FixtureRequest) -> Iterator[JobStore]:
    """An empty store."""
    for place in _place(request.param, request):
        yield place.open()


@pytest.fixture
def postgres_place(request: pytest.FixtureRequest) -> Iterator[JobStorePlace]:
    """A durable store for what only PostgreSQL has."""
    yield from _place("postgres", request)


def _url(kind: str, request: pytest.FixtureRequest, name: str) -> str:
    if kind == "memory":
        return "sqlite:///:memory:"
    if kind == "sqlite":
        folder: Path = request.getfixturevalue("tmp_path")
        return f"sqlite:///{folder / name}"
    url: str = request.getfixturevalue("empty_postgres")()
    return url


@pytest.fixture(params=_DURABLE)
def knob_place(request: pytest.FixtureRequest) -> Iterator[KnobStorePlace]:
    """A durable control store that a test opens as often as it likes."""
    place = KnobStorePlace(_url(request.param, request, "control.db"))
    yield place
    for store in place.opened:
        store.close()


@pytest.fixture(params=["memory", *_DURABLE])
def knobs(request: pytest.FixtureRequest) -> Iterator[KnobStore]:
    """An empty control store."""
    place = KnobStorePlace(_url(request.param, request, "control.db"))
    yield place.open()
    for store in place.opened:
        store.close()


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[ValkeyProcess]:
    with valkey_process() as server:
        yield server


@pytest.fixture(scope="session")
def valkey_cluster() -> Iterator[ValkeyProcess]:
    with valkey_process(cluster=True) as server:
        yield server


@pytest.fixture(params=KINDS)
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """An empty shared pool."""
    made = make_stage(request.param, request)
    yield made
    made.close()
