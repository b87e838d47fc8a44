"""Tenants by the thousand: what one of them changes does not hold up the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from tidegate.classify import Classifier, Tenant
from tidegate.config import Settings, key_digest, parse_settings, patch_policy, replace_tenants
from tidegate.control.live import here
from tidegate.stores import KnobStore, StoredKey, StoredTenant
from unit.control_stage import FILE, Stage

COUNT = 1500
PART = 0.6
"""The loop's part of the CPU time of changes, at most: some 0.4, and 1 with everything done on the loop."""


def stored() -> list[StoredTenant]:
    settings = {"band": "p2", "max_band": "p1", "weight": 1}
    return [
        StoredTenant(f"t{index}", dict(settings), (StoredKey(key_digest(f"k{index}"), 0.0),)) for index in range(COUNT)
    ]


def saving(tenant: StoredTenant) -> Callable[[KnobStore], object]:
    return lambda store: store.save_tenant(tenant, None, keep=9)


def least(measure: Callable[[], list[float]]) -> list[float]:
    """The least of three of each time: a run of the garbage collector meets one of them."""
    return [min(times) for times in zip(*(measure() for _ in range(3)), strict=True)]


def busy_stage(text: str, load: Callable[[], Settings] | None = None, *, beside: bool = True) -> Stage:
    """A stage that has its callers told, and its long work done ``beside`` the loop, as a gateway has."""
    stage = Stage(text, load=load)
    classifier = Classifier(stage.settings)

    def prepare(after: Settings, mode: str) -> Callable[[], None]:
        policy, take = after.core_policy(mode), classifier.prepared(after)

        def put() -> None:
            stage.driver.set_policy(policy)
            take()

        return put

    stage.live._prepare = prepare
    stage.live._aside = asyncio.to_thread if beside else here
    return stage


def test_making_changing_and_dropping_one_of_thousands_is_cheap_for_the_loop() -> None:
    async def story(*, beside: bool) -> list[float]:
        stage = busy_stage(FILE, beside=beside)
        books, used = stage.books, list[float]()
        for tenant in stored():
            await books.keeper.ask(saving(tenant))
        await books.tenants.load()
        changes: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: books.tenants.create("shop", {"band": "p1"}, who="a"),
            lambda: books.tenants.update("t7", {"weight": 3}, who="a"),
            lambda: books.tenants.add_key("t7", who="a"),
            lambda: books.tenants.expire(),
            lambda: books.tenants.drop("t7", who="a"),
        )
        for change in changes:
            began = time.thread_time()
            await change()
            used.append(time.thread_time() - began)
        names = {tenant.name for tenant in stage.live.settings.tenants}
        assert (len(names), "shop" in names, "t7" in names) == (COUNT, True, False)
        return used

    used = least(lambda: asyncio.run(story(beside=True)))
    whole = least(lambda: asyncio.run(story(beside=False)))
    assert sum(used) < PART * sum(whole), (used, whole)


def test_a_file_of_thousands_is_read_beside_the_loop() -> None:
    rows = "\n".join(f'  - {{name: t{index}, keys: ["{key_digest(str(index))}"], band: p2}}' for index in range(COUNT))
    text = f"{FILE}tenants:\n{rows}\n"

    def load() -> Settings:
        return parse_settings(text + "policy: {queue_capacity: 77}\n")

    async def story(*, beside: bool) -> list[float]:
        stage = busy_stage(text, load, beside=beside)
        began = time.thread_time()
        record = await stage.live.reload(who="a")
        used = time.thread_time() - began
        assert record is not None
        assert [row["what"] for row in record.changes] == ["policy.queue_capacity"]
        assert stage.live.settings.policy.queue_capacity == 77
        return [used]

    used = least(lambda: asyncio.run(story(beside=True)))
    whole = least(lambda: asyncio.run(story(beside=False)))
    assert used[0] < PART * whole[0]


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


def test_another_tenant_leaves_the_callers_of_before_and_their_keys_alone() -> None:
    rows = "\n".join(f'  - {{name: t{each}, keys: ["{key_digest(str(each))}"], band: p2}}' for each in range(20))
    before = parse_settings(f"{FILE}tenants:\n{rows}\n")
    classifier = Classifier(before)
    known = {caller.name: caller for caller in classifier.identities.tenants}

    def of_key(key: str) -> str | None:
        found = classifier.identities.identify({b"host": b"localhost", b"api-key": key.encode()})
        return getattr(found, "name", None)

    def said(caller: Tenant | None) -> tuple[object, ...]:
        return (
            () if caller is None else (caller.name, caller.band, caller.max_band, caller.trusted, caller.strict_bands)
        )

    assert (of_key("3"), of_key("4"), of_key("new")) == ("t3", "t4", None)
    changed = before.tenants[3].model_copy(update={"keys": (key_digest("new"),), "max_band": "p0"})
    heir = before.tenants[4].model_copy(update={"name": "heir"})  # of the key of one that is gone
    after = replace_tenants(before, (*before.tenants[:3], changed, *before.tenants[5:], heir))
    classifier.obey(after)
    fresh = Classifier(after).identities
    assert [*map(said, classifier.identities.tenants)] == [*map(said, fresh.tenants)]
    assert [each.name for each in fresh.tenants if said(known.get(each.name)) == said(each)] == [
        each.name for each in classifier.identities.tenants if known.get(each.name) is each
    ]
    assert (of_key("3"), of_key("4"), of_key("new"), of_key("5")) == (None, "heir", "t3", "t5")


def test_another_tenant_leaves_those_of_before_as_they_were_compiled() -> None:
    rows = "\n".join(f'  - {{name: t{each}, keys: ["{key_digest(str(each))}"], band: p2}}' for each in range(20))
    before = parse_settings(f"{FILE}tenants:\n{rows}\n")
    specs = {spec.name: spec for spec in before.core_policy().tenants}
    changed = before.tenants[3].model_copy(update={"weight": 7})
    new = before.tenants[0].model_copy(update={"name": "new", "keys": ()})
    after = replace_tenants(before, (new, *before.tenants[:3], changed, *before.tenants[5:])).core_policy().tenants
    assert [spec.name for spec in after] == ["new", "t0", "t1", "t2", "t3", *(f"t{n}" for n in range(5, 20))]
    assert [spec.name for spec in after if spec is not specs.get(spec.name)] == ["new", "t3"]
    assert after[4].weight == 7


def test_a_page_of_a_thousand_lets_the_loop_turn_and_is_in_order() -> None:
    async def story() -> tuple[int, list[str]]:
        names = [f"t{number:04}" for number in range(COUNT)]
        tenants = ", ".join(f"{{name: {name}, keys: ['{key_digest(name)}']}}" for name in reversed(names))
        stage, turns = Stage(f"{FILE}tenants: [{tenants}]"), 0
        asking = asyncio.ensure_future(stage.ask("GET", "/admin/tenants?limit=1000&after=t0009"))
        while not asking.done():
            turns += 1
            await asyncio.sleep(0)
        return turns, [row["name"] for row in asking.result().json["tenants"]]

    turns, found = asyncio.run(story())
    assert found == [f"t{number:04}" for number in range(10, 1010)]
    assert turns >= 1000 // 64
