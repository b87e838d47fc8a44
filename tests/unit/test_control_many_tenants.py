"""Tenants by the thousand: what one of them changes does not hold up the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from tidegate.classify import Classifier
from tidegate.config import Settings, key_digest, parse_settings, patch_policy, replace_tenants
from tidegate.stores import KnobStore, StoredKey, StoredTenant
from unit.control_stage import FILE, Stage

COUNT = 1500
MOST_S = 0.02
"""CPU time of the loop's thread for one change: 2 to 4 ms; everything done on the loop took 30."""


def stored() -> list[StoredTenant]:
    settings = {"band": "p2", "max_band": "p1", "weight": 1}
    return [
        StoredTenant(f"t{index}", dict(settings), (StoredKey(key_digest(f"k{index}"), 0.0),)) for index in range(COUNT)
    ]


def saving(tenant: StoredTenant) -> Callable[[KnobStore], object]:
    return lambda store: store.save_tenant(tenant, None, keep=9)


def busy_stage(text: str, load: Callable[[], Settings] | None = None) -> Stage:
    """A stage that has its callers told, and its long work done, as a gateway has."""
    stage = Stage(text, load=load)
    classifier = Classifier(stage.settings)

    def prepare(after: Settings, mode: str) -> Callable[[], None]:
        policy, take = after.core_policy(mode), classifier.prepared(after)

        def put() -> None:
            stage.driver.set_policy(policy)
            take()

        return put

    stage.live._prepare, stage.live._aside = prepare, asyncio.to_thread
    return stage


def test_making_changing_and_dropping_one_of_thousands_is_cheap_for_the_loop() -> None:
    async def story() -> list[float]:
        stage = busy_stage(FILE)
        books, used = stage.books, list[float]()
        for tenant in stored():
            await books.keeper.ask(saving(tenant))
        await books.tenants.load()
        changes: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: books.tenants.create("shop", {"band": "p1"}, who="a"),
            lambda: books.tenants.update("t7", {"weight": 3}, who="a"),
            lambda: books.tenants.add_key("t7", who="a"),
            lambda: books.tenants.expire(),
            lambda: books.tenants.load(),
            lambda: books.tenants.drop("t7", who="a"),
        )
        for change in changes:
            began = time.thread_time()
            await change()
            used.append(time.thread_time() - began)
        names = {tenant.name for tenant in stage.live.settings.tenants}
        assert (len(names), "shop" in names, "t7" in names) == (COUNT, True, False)
        return used

    used = asyncio.run(story())
    assert max(used) < MOST_S, used


def test_a_file_of_thousands_is_read_beside_the_loop() -> None:
    rows = "\n".join(f'  - {{name: t{index}, keys: ["{key_digest(str(index))}"], band: p2}}' for index in range(COUNT))
    text = f"{FILE}tenants:\n{rows}\n"

    def load() -> Settings:
        return parse_settings(text + "policy: {queue_capacity: 77}\n")

    async def story() -> float:
        stage = busy_stage(text, load)
        began = time.thread_time()
        record = await stage.live.reload(who="a")
        used = time.thread_time() - began
        assert record is not None
        assert [row["what"] for row in record.changes] == ["policy.queue_capacity"]
        assert stage.live.settings.policy.queue_capacity == 77
        return used

    assert asyncio.run(story()) < MOST_S


def test_a_policy_does_not_read_thousands_of_callers_again() -> None:
    rows = "\n".join(f'  - {{name: t{each}, keys: ["{key_digest(str(each))}"], band: p2}}' for each in range(20))
    before = parse_settings(f"{FILE}tenants:\n{rows}\n")
    classifier, specs = Classifier(before), before.core_policy().tenants
    identities = classifier.identities
    after = patch_policy(before, {"queue_capacity": 70})
    classifier.obey(after)
    assert (after.tenants is before.tenants, after.core_policy().tenants is specs) == (True, True)
    assert classifier.identities is identities
    fewer = replace_tenants(after, after.tenants[1:])
    classifier.obey(fewer)
    assert [row.name for row in fewer.core_policy().tenants] == [row.name for row in fewer.tenants]
    assert len(classifier.identities.tenants) == len(fewer.tenants) == 19
