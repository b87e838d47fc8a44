"""``/admin/openapi.json``: the control API in OpenAPI 3.1, so that clients can be generated and people can look.

Written by hand beside the routes; a test holds it to them: every route is here, and every answer that the tests get
fits its schema.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tidegate._version import __version__
from tidegate.control.openapi_schemas import SCHEMAS, ref
from tidegate.control.operators import Operator
from tidegate.control.routing import VIEW, Entrance
from tidegate.control.speech import answer

Doc = dict[str, Any]

ERRORS = {
    400: "the request or a setting in it is not valid",
    401: "a token is needed, or this one is nobody's",
    403: "the role does not allow it, or the request comes from a foreign page",
    404: "there is no such thing",
    409: "it has changed since, or cannot be done",
    413: "the body is too large",
    415: "the body is not plain JSON",
    429: "too many wrong tokens from this address",
    503: "the scheduler, the store or the jobs are not there",
}


def document() -> Doc:
    """Return the whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tidegate control API",
            "version": __version__,
            "description": "Looking needs the role viewer, changing the role operator. Without operators in the "
            "settings, every program on this machine may do everything.",
        },
        "security": [{"token": []}, {"login": []}],
        "paths": _paths(),
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "login": {"type": "apiKey", "in": "cookie", "name": "tidegate-PORT"},
            },
        },
    }


class OpenApiRoutes:
    """Answers it. ``routes`` are to be mounted."""

    def __init__(self, entrance: Entrance) -> None:
        self._document = document()
        self.routes: list[Route] = [entrance.route("/admin/openapi.json", {"GET": (VIEW, self._shown)})]

    async def _shown(self, _: Request, __: Operator) -> Response:
        return answer(self._document)


def _paths() -> Doc:
    limit = _query("limit", "most rows", {"type": "integer", "minimum": 1, "maximum": 1000})
    request_id = _path("id", "id of the ticket, or TENANT/NAME with the x-request-id of its client")
    name, key, letter = _path("name", "the tenant"), _path("id", "the key"), _path("id", "a dead letter, or a batch")
    return {
        "/admin/openapi.json": {"get": _op("This document", _json({"type": "object"}))},
        "/admin/me": {"get": _op("Who asks", _json(ref("Me")))},
        "/admin/login": {
            "post": _op("Get a cookie for a token", _json(ref("Operator")), body=ref("Login"), open_=True)
        },
        "/admin/logout": {
            "post": _op("Give the cookie back", _json(ref("LoggedOut")), body=ref("Nothing"), open_=True)
        },
        "/admin/state": {"get": _op("The scheduler as it is now", _json(ref("State")))},
        "/admin/events": {"get": _op("The dashboard's numbers as they change", _text("text/event-stream"))},
        "/admin/mode": {
            "get": _op("The mode in force", _json(ref("Mode"))),
            "post": _op("Switch the mode", _json(ref("Switched")), body=ref("Switch")),
        },
        "/admin/policy": {
            "get": _op("The whole policy, in the form of the settings file", _json(ref("Policy"))),
            "put": _op("Replace it", _json(ref("Changed")), body=ref("Policy")),
            "patch": _op("Change some of it: a JSON merge patch", _json(ref("Changed")), body={"type": "object"}),
        },
        "/admin/policy/preview": {
            "post": _op("What a patch would change", _json(ref("Preview")), body=ref("PreviewRequest")),
        },
        "/admin/backends": {
            "get": _op("The backends of each model, without credentials", _json(ref("Backends"))),
            "put": _op("Replace those of the models that are named", _json(ref("Changed")), body=ref("Backends")),
        },
        "/admin/reload": {"post": _op("Read the settings file again", _json(ref("Changed")), body=ref("Nothing"))},
        "/admin/drain": {
            "post": _op("Refuse what waits and what comes", _json(ref("Draining")), body=ref("Nothing"), status=202),
        },
        "/admin/requests": {
            "get": _op("Requests that wait, longest first", _json(ref("Requests")), _query("band", "only this"), limit),
        },
        "/admin/requests/{id}": {
            "get": _op("Why a request waits", _json(ref("Why")), request_id),
            "delete": _op("Stop a request", _json(ref("Stopped")), request_id),
        },
        "/admin/audit": {
            "get": _op("Changes, newest first", _json(ref("Records")), limit, _query("before", "only older ones", ID)),
        },
        "/admin/audit/{id}/undo": {
            "post": _op("Take a change back", _json(ref("Undone")), _path("id", "the record", ID), body=ref("Undo")),
        },
        "/admin/tenants": {
            "get": _op("Tenants by name", _json(ref("Tenants")), limit, _query("after", "a name")),
            "post": _op("Make a tenant", _json(ref("NewKey")), body=ref("NewTenant"), status=201),
        },
        "/admin/tenants/{name}": {
            "get": _op("One tenant", _json(ref("Tenant")), name),
            "patch": _op("Change one: a JSON merge patch", _json(ref("Tenant")), name, body={"type": "object"}),
            "delete": _op("Take one away", _json(ref("Deleted")), name),
        },
        "/admin/tenants/{name}/keys": {
            "post": _op("Give a tenant a key", _json(ref("NewKey")), name, body=ref("KeyRequest"), status=201),
        },
        "/admin/tenants/{name}/keys/{id}": {"delete": _op("Revoke a key", _json(ref("Tenant")), name, key)},
        "/admin/usage.csv": {
            "get": _op(
                "What each tenant used",
                _text("text/csv"),
                _query("from", "a day or a time, UTC unless it says otherwise"),
                _query("to", "a day or a time"),
                _query("by", "length of the periods", {"enum": ["total", "day", "hour"]}),
            ),
        },
        "/admin/dead-letters": {
            "get": _op(
                "Rows of batches that were given up", _json(ref("DeadLetters")), limit, _query("after", "an id")
            ),
        },
        "/admin/dead-letters/{id}": {"delete": _op("Take one off the list", _json({"type": "object"}), letter)},
        "/admin/dead-letters/{id}/redrive": {"post": _op("Send one again", _json({"type": "object"}), letter)},
    }


ID: Doc = {"type": "integer", "minimum": 1}


def _op(
    summary: str, content: Doc, *parameters: Doc, body: Doc | None = None, status: int = 200, open_: bool = False
) -> Doc:
    errors = {str(code): {"description": text, "content": _json(ref("Error"))} for code, text in ERRORS.items()}
    operation: Doc = {
        "summary": summary,
        "responses": {str(status): {"description": "done", "content": content}, **errors},
    }
    if parameters:
        operation["parameters"] = list(parameters)
    if body is not None:
        operation["requestBody"] = {"required": True, "content": _json(body)}
    if open_:
        operation["security"] = []
    return operation


def _json(schema: Doc) -> Doc:
    return {"application/json": {"schema": schema}}


def _text(kind: str) -> Doc:
    return {kind: {"schema": {"type": "string"}}}


def _query(name: str, description: str, schema: Doc | None = None) -> Doc:
    return {"name": name, "in": "query", "description": description, "schema": schema or {"type": "string"}}


def _path(name: str, description: str, schema: Doc | None = None) -> Doc:
    return {**_query(name, description, schema), "in": "path", "required": True}
