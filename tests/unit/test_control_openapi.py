"""The OpenAPI document and the routes say the same, and examples of all answers fit it."""

from __future__ import annotations

import asyncio
import json

from jsonschema import Draft202012Validator
from starlette.routing import Route

from tidegate.config import parse_settings
from tidegate.core import Ticket
from tidegate.testing import run_virtual
from unit.control_stage import FILE, Stage
from unit.openapi_check import DOCUMENT, SEEN, template_of
from unit.test_control_audit import Letters

TENANTS = "tenants: [{name: checkout, keys: ['sha256:" + "0" * 64 + "'], limits: {max_running: 3}}]"


def test_every_route_is_in_the_document_and_nothing_else() -> None:
    async def story() -> None:
        routes = [
            route for route in Stage().app.routes if isinstance(route, Route) and route.path.startswith("/admin/")
        ]
        real = {(template_of(route), method.lower()) for route in routes for method in route.methods or ("GET",)}
        documented = {(path, method) for path, methods in DOCUMENT["paths"].items() for method in methods}
        assert {pair for pair in real if pair[1] != "head"} == documented
        for path, methods in DOCUMENT["paths"].items():
            for operation in methods.values():
                given = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"}
                assert given == {part[1:-1] for part in path.split("/") if part.startswith("{")}

    run_virtual(story())


def test_it_is_served_and_its_references_lead_somewhere() -> None:
    async def story() -> None:
        shown = (await Stage().get("/admin/openapi.json")).json
        assert shown == json.loads(json.dumps(DOCUMENT))
        assert shown["openapi"] == "3.1.0"
        schemas = shown["components"]["schemas"]
        used = {
            text.rpartition("/")[2].rstrip('"') for text in json.dumps(shown).split() if "#/components/schemas/" in text
        }
        used = {name.strip('",}]') for name in used}
        assert used <= set(schemas)
        for schema in schemas.values():
            Draft202012Validator.check_schema(schema)

    run_virtual(story())


def test_an_example_of_every_answer_fits() -> None:
    """Every request of every test is held to the document (see ``Stage.ask``); here each operation succeeds once."""

    async def story() -> None:
        stage = Stage(FILE + TENANTS, load=lambda: parse_settings(FILE + TENANTS), letters=Letters())
        waiting = [
            asyncio.ensure_future(stage.driver.acquire(Ticket(f"t{n}", "m", n, "shop", name="n"))) for n in range(3)
        ]
        await asyncio.sleep(0)
        calls = [
            ("GET", "/admin/state", None),
            ("GET", "/admin/me", None),
            ("POST", "/admin/logout", {}),
            ("GET", "/admin/openapi.json", None),
            ("GET", "/admin/mode", None),
            ("POST", "/admin/mode", {"mode": "observe", "revert_after": "1h"}),
            ("GET", "/admin/policy", None),
            ("POST", "/admin/policy/preview", {"policy": {"bands": {"p2": {"floor": 0.1}}}}),
            ("POST", "/admin/policy/preview", {"policy": {"bands": {"p2": {"floor": 7}}}}),
            ("PATCH", "/admin/policy", {"queue_capacity": 9}),
            ("PUT", "/admin/policy", (await stage.get("/admin/policy")).json),
            ("GET", "/admin/backends", None),
            ("PUT", "/admin/backends", (await stage.get("/admin/backends")).json),
            ("GET", "/admin/requests?band=p1", None),
            ("GET", "/admin/requests/t1", None),
            ("GET", "/admin/requests/t0", None),
            ("DELETE", "/admin/requests/t1", None),
            ("POST", "/admin/tenants", {"name": "new"}),
            ("GET", "/admin/tenants", None),
            ("GET", "/admin/tenants/checkout", None),
            ("PATCH", "/admin/tenants/new", {"weight": 2}),
            ("POST", "/admin/tenants/new/keys", {"grace": "1h"}),
            ("GET", "/admin/usage.csv", None),
            ("GET", "/admin/dead-letters", None),
            ("POST", "/admin/dead-letters/b1-7/redrive", {}),
            ("DELETE", "/admin/dead-letters/b1-7", None),
            ("POST", "/admin/reload", {}),
            ("GET", "/admin/audit", None),
            ("POST", "/admin/audit/2/undo", {"force": True}),
        ]
        for method, target, body in calls:
            answer = await stage.ask(method, target, body)
            assert answer.status in (200, 201), (method, target, answer.body)
        key = (await stage.get("/admin/tenants/new")).json["keys"][0]["id"]
        assert (await stage.ask("DELETE", f"/admin/tenants/new/keys/{key}")).status == 200
        assert (await stage.ask("DELETE", "/admin/tenants/new")).status == 200
        assert (await stage.ask("POST", "/admin/drain", {})).status == 202
        for task in waiting:
            task.cancel()
        done = {(path, method) for path, method, status in SEEN if status < 400}
        wanted = {(path, method) for path, methods in DOCUMENT["paths"].items() for method in methods}
        assert wanted - done <= {("/admin/login", "post"), ("/admin/events", "get")}, "these have tests of their own"

    run_virtual(story())


def test_values_are_described_by_their_fields_types() -> None:
    """Also where the scheduler is compiled, which forgets what is ``X | None`` and what a tuple is of."""
    schemas = DOCUMENT["components"]["schemas"]
    backend = schemas["BackendSnapshot"]["properties"]
    assert backend["kv_free"]["anyOf"] == [{"type": "number"}, {"type": "null"}]
    assert schemas["State"]["properties"]["bands"]["items"] == {"$ref": "#/components/schemas/BandSnapshot"}
