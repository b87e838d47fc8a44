"""Wire a gateway to those that it shares its pools with."""

from __future__ import annotations

import secrets
import socket

from tidegate.config import ClusterSettings, ConfigError, Problem, Settings
from tidegate.core import Policy, Scheduler
from tidegate.runtime import Clock, Driver, EventLog
from tidegate.runtime.replica_pools import Replica, ReplicaTerms
from tidegate.stores import StoreError
from tidegate.stores.ledger_client import StoreLoss
from tidegate.stores.open_ledger import open_ledger
from tidegate.telemetry import Recorder


def open_replica(cluster: ClusterSettings | None, scheduler: Scheduler, clock: Clock) -> Replica | None:
    """Return this gateway as one of several, ``None`` when it is alone. Nothing is connected yet.

    Raises:
        ConfigError: the store's URL cannot be used, or its driver is not installed.
    """
    if cluster is None:
        return None
    try:
        store = open_ledger(cluster.store)
    except StoreError as error:
        raise ConfigError([Problem("cluster.store", str(error).removeprefix("cluster.store: "))]) from None
    terms = ReplicaTerms(
        cluster.replica or replica_name(),
        group=cluster.pool,
        ttl_s=cluster.lease_ttl,
        on_store_loss=StoreLoss(cluster.on_store_loss),
        first_part=cluster.first_share,
        run=secrets.token_hex(4),
    )
    return Replica(terms, store, scheduler, clock)


def make_driver(
    settings: Settings, policy: Policy, clock: Clock, recorder: Recorder, events: EventLog | None
) -> tuple[Driver, Replica | None]:
    """Return the driver of a scheduler, and the replica that shares its pools, where they are shared.

    Raises:
        ConfigError: the cluster's store cannot be used.
    """
    scheduler = Scheduler(policy)
    replica = recorder.replica = open_replica(settings.cluster, scheduler, clock)
    if replica is None:
        return Driver(scheduler, clock, recorder, event_log=events), None
    driver = Driver(replica.scheduler, clock, recorder, event_log=events)
    replica.join(driver.observe)
    return driver, replica


def replica_name() -> str:
    """Return a name that no other gateway has, and that people recognise."""
    return f"{socket.gethostname()[:40]}-{secrets.token_hex(3)}"
