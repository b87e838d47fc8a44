"""Who calls: keys, callers without one, and whom a loopback gateway listens to."""

from __future__ import annotations

import pytest

from tidegate.classify import Classifier, Headers, Refused, Shown, Tenant, is_loopback_host
from tidegate.config import ANONYMOUS, key_digest, parse_settings
from tidegate.core import Reason

MODELS = 'models: [{name: m, backends: [{url: "http://127.0.0.1:9"}]}]\n'
TENANTS = f"""
tenants:
  - {{name: shop, keys: ["{key_digest("sk-shop")}", "{key_digest("sk-new")}"], band: p0}}
  - {{name: lab, keys: ["{key_digest("sk-lab")}"], band: p2, max_band: p1, trusted: true, strict_bands: true}}
"""
OPEN = "anonymous: {band: p1, max_band: p0}\n"
PUBLIC = 'gateway: {listen: "0.0.0.0:8400"}\n'
LOCAL = {b"host": b"127.0.0.1:8400"}


def identify(settings: str, headers: Headers) -> Tenant | Refused:
    return Classifier(parse_settings(MODELS + settings)).identify(headers)


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({b"authorization": b"Bearer sk-shop"}, "shop"),
        ({b"authorization": b"bearer  sk-new "}, "shop"),
        ({b"api-key": b"sk-lab"}, "lab"),
        ({b"x-api-key": b"sk-lab"}, "lab"),
        ({b"authorization": b"Bearer ", b"x-api-key": b"sk-lab"}, "lab"),
        ({b"authorization": b"Bearer sk-shop", b"origin": b"https://shop.example"}, "shop"),
    ],
)
def test_a_key_gives_its_tenant(headers: Headers, name: str) -> None:
    tenant = identify(TENANTS, LOCAL | headers)
    assert isinstance(tenant, Tenant)
    assert tenant.name == name


def test_a_tenant_has_what_the_file_says() -> None:
    lab, shop = identify(TENANTS, LOCAL | {b"api-key": b"sk-lab"}), identify(TENANTS, LOCAL | {b"api-key": b"sk-shop"})
    assert isinstance(lab, Tenant)
    assert (lab.name, lab.band, lab.max_band, lab.trusted, lab.strict_bands) == ("lab", 2, 1, True, True)
    assert isinstance(shop, Tenant)
    assert (shop.name, shop.band, shop.max_band, shop.trusted, shop.strict_bands) == ("shop", 0, 0, False, False)


@pytest.mark.parametrize("settings", [TENANTS, TENANTS + OPEN, OPEN, ""])
@pytest.mark.parametrize(
    "headers",
    [
        {b"authorization": b"Bearer sk-wrong"},
        {b"authorization": b"Basic c2s6c2s="},
        {b"authorization": b"Basic sk-shop"},
        {b"authorization": b"sk-shop"},
        {b"api-key": b"sk-wrong"},
        {b"authorization": b"Bearer sk-wrong", b"x-api-key": b"sk-lab"},
        {b"x-api-key": b"\xff\x00"},
    ],
)
def test_a_wrong_key_is_refused_also_where_anonymous_is_welcome(settings: str, headers: Headers) -> None:
    refused = identify(settings, LOCAL | headers)
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.UNAUTHORIZED
    assert "sk-" not in refused.detail


def assert_anonymous(tenant: Tenant | Refused) -> None:
    assert isinstance(tenant, Tenant)
    assert (tenant.name, tenant.band, tenant.max_band) == (ANONYMOUS, 1, 0)
    assert not tenant.trusted


@pytest.mark.parametrize("headers", [{}, {b"authorization": b"Bearer EMPTY"}, {b"authorization": b"Bearer"}])
def test_no_key_and_placeholders_are_anonymous_where_that_is_welcome(headers: Headers) -> None:
    assert_anonymous(identify("", LOCAL | headers))
    assert_anonymous(identify(TENANTS + OPEN, LOCAL | headers))
    assert_anonymous(identify(OPEN + PUBLIC, {b"host": b"llm.example"} | headers))
    for settings in (TENANTS, TENANTS + PUBLIC, "anonymous: off\n" + TENANTS):
        refused = identify(settings, LOCAL | headers)
        assert isinstance(refused, Refused)
        assert refused.reason is Reason.UNAUTHORIZED


@pytest.mark.parametrize("name", [b"origin", b"forwarded", b"x-forwarded-for"])
def test_what_comes_through_a_page_or_a_proxy_is_never_anonymous(name: bytes) -> None:
    refused = identify(OPEN, LOCAL | {name: b"1.2.3.4"})
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.UNAUTHORIZED
    assert name.decode() in refused.detail


@pytest.mark.parametrize(
    ("host", "local"),
    [
        (b"localhost", True),
        (b"LOCALHOST:8400", True),
        (b"gpu.localhost:1", True),
        (b"localhost.", True),
        (b"127.0.0.1", True),
        (b"127.8.9.1:80", True),
        (b"[::1]", True),
        (b"[::1]:8400", True),
        (b"", False),
        (b"evil.example", False),
        (b"evil.example:8400", False),
        (b"localhost.evil.example", False),
        (b"127.0.0.1.evil.example:8400", False),
        (b"192.168.1.2:8400", False),
        (b"127.0.0.1:x", False),
        (b"\xff", False),
        (None, False),
    ],
)
def test_loopback_hosts(host: bytes | None, local: bool) -> None:
    assert is_loopback_host(host) is local


@pytest.mark.parametrize(
    "headers", [{}, {b"host": b"evil.example"}, {b"host": b"evil.example", b"api-key": b"sk-shop"}]
)
def test_a_loopback_gateway_refuses_foreign_hosts_and_a_public_one_does_not(headers: Headers) -> None:
    refused = identify(TENANTS, headers)
    assert isinstance(refused, Refused)
    assert (refused.status, refused.param) == (403, "host")
    anywhere = identify(TENANTS + PUBLIC, headers)
    assert not isinstance(anywhere, Refused) or anywhere.reason is Reason.UNAUTHORIZED


@pytest.mark.parametrize("foreign", [{b"host": b"attacker.example"}, {b"host": b""}, {}])
def test_a_good_host_lends_nothing_to_the_next_request(foreign: Headers) -> None:
    classifier = Classifier(parse_settings(MODELS + OPEN))
    for _ in range(2):
        assert isinstance(classifier.identify(LOCAL), Tenant)
        refused = classifier.identify(foreign)
        assert isinstance(refused, Refused)
        assert refused.status == 403


SHOP, NEW, LAB = (LOCAL | {b"authorization": b"Bearer " + key} for key in (b"sk-shop", b"sk-new", b"sk-lab"))


def named(tenant: Tenant | Refused) -> str:
    return tenant.name if isinstance(tenant, Tenant) else tenant.reason


def test_on_a_connection_each_request_is_its_own_caller_s() -> None:
    classifier, shown = Classifier(parse_settings(MODELS + TENANTS + OPEN)), Shown()
    wrong = LOCAL | {b"authorization": b"Bearer sk-shoq"}
    other = LOCAL | {b"authorization": b"Bearer EMPTY", b"api-key": b"sk-lab"}
    row = [SHOP, SHOP, LAB, wrong, LAB, LOCAL, SHOP, NEW, other, LOCAL, wrong, wrong, {}, SHOP]
    for headers in row + row[::-1]:
        assert named(classifier.identify(headers, shown)) == named(classifier.identify(headers))


def test_only_a_key_that_is_a_tenant_s_is_remembered() -> None:
    classifier, shown = Classifier(parse_settings(MODELS + TENANTS)), Shown()
    for headers in (LOCAL | {b"authorization": b"Bearer sk-guess"}, LOCAL, LOCAL | {b"api-key": b"x"}):
        assert isinstance(classifier.identify(headers, shown), Refused)
        assert (shown.key, shown.tenant) == (b"", None)
    classifier.identify(SHOP, shown)
    classifier.identify(LOCAL | {b"authorization": b"Bearer sk-guess"}, shown)
    assert shown.key == b"sk-shop"


def test_a_key_that_is_taken_back_or_given_to_another_is_so_at_once_also_on_an_open_connection() -> None:
    classifier = Classifier(parse_settings(MODELS + TENANTS))
    shown = [Shown(), Shown()]
    keys = [SHOP, NEW]
    assert [named(classifier.identify(*each)) for each in zip(keys, shown, strict=True)] == ["shop", "shop"]
    changed = TENANTS.replace(f'"{key_digest("sk-shop")}", ', "").replace(key_digest("sk-lab"), key_digest("sk-shop"))
    classifier.obey(parse_settings(MODELS + changed))
    assert [named(classifier.identify(*each)) for each in zip(keys, shown, strict=True)] == ["lab", "shop"]
    classifier.obey(parse_settings(MODELS + changed.replace(key_digest("sk-shop"), key_digest("sk-other"))))
    assert [named(classifier.identify(*each)) for each in zip(keys, shown, strict=True)] == ["unauthorized", "shop"]
