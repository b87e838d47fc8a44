"""Schemas of the control API's questions and answers. Answers have no other fields than these."""

from __future__ import annotations

from typing import Any

import msgspec

from tidegate.core import Snapshot, WhyKind

Doc = dict[str, Any]

TEXT: Doc = {"type": "string"}
NUMBER: Doc = {"type": "number"}
WHOLE: Doc = {"type": "integer"}
YES: Doc = {"type": "boolean"}
ANY: Doc = {}
TIME: Doc = {"type": "string", "format": "date-time"}
DURATION: Doc = {"type": ["string", "number"], "examples": ["250ms", "30min", 1.5]}


def ref(name: str) -> Doc:
    """Point to a schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def _or_null(schema: Doc) -> Doc:
    if "type" in schema and isinstance(schema["type"], str):
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def _list(schema: Doc) -> Doc:
    return {"type": "array", "items": schema}


def _map(schema: Doc) -> Doc:
    return {"type": "object", "additionalProperties": schema}


def _fields(_optional: tuple[str, ...] = (), /, **fields: Doc) -> Doc:
    """An object that has these fields and no other; all but the optional ones."""
    required = [name for name in fields if name not in _optional]
    return {"type": "object", "properties": fields, "required": required, "additionalProperties": False}


_PARTS = msgspec.json.schema_components([Snapshot], ref_template="#/components/schemas/{name}")[1]
"""The scheduler's own types, whole as they are always written."""

for _part in _PARTS.values():
    _part.pop("description", None)  # for readers of the code, and not there where it is compiled
    if _part.get("type") == "object":
        _part |= {"required": [*_part["properties"]], "additionalProperties": False}
_STATE = _PARTS.pop("Snapshot")
_STATE["properties"] |= {
    "would": _map(WHOLE),
    "waste": _fields(tokens=WHOLE, computed=WHOLE, causes=_map(WHOLE)),
    "mode": TEXT,
    "not_ready": _or_null(TEXT),
}
_STATE["required"] = [*_STATE["properties"]]

_CHANGE = _fields(**{"what": TEXT, "from": ANY, "to": ANY})
_PROBLEM = _fields(field=TEXT, expected=TEXT, got=TEXT, nearest=_or_null(TEXT), message=TEXT)
_MODE = {
    "mode": TEXT,
    "by": TEXT,
    "since_utc": TIME,
    "reverts_to": _or_null(TEXT),
    "reverts_in_s": _or_null(NUMBER),
    "modes": _list(TEXT),
}
_CHANGED = {"changes": _list(ref("Change")), "record": _or_null(WHOLE)}
_LIMITS = {name: _or_null(WHOLE) for name in ("requests_per_minute", "tokens_per_minute", "max_queued", "max_running")}
_TENANT = {
    "band": TEXT,
    "max_band": TEXT,
    "weight": NUMBER,
    "limits": _fields(**_LIMITS),
    "trusted": YES,
    "allow_lending": YES,
    "strict_bands": YES,
}
_BOUND = _fields(now_s=_or_null(NUMBER), then_s=_or_null(NUMBER))

_WANTED: Doc = {"anyOf": [YES, _fields(profile=TEXT)]}
_FIGURES = _fields(
    sent=WHOLE,
    answered=WHOLE,
    refused=_map(WHOLE),
    wait_p50_s=_or_null(NUMBER),
    wait_p99_s=_or_null(NUMBER),
    ttft_p99_s=_or_null(NUMBER),
)
_RAN = _fields(span_s=NUMBER, requests=WHOLE, profile=TEXT, bands=_map(_fields(now=_FIGURES, then=_FIGURES)))

SCHEMAS: Doc = {
    **_PARTS,
    "State": _STATE,
    "Error": _fields(
        error=_fields(
            ("errors",),
            message=TEXT,
            type=TEXT,
            param=_or_null(TEXT),
            code=TEXT,
            errors=_list(ref("Problem")),
        )
    ),
    "Problem": _PROBLEM,
    "Nothing": {"type": "object", "maxProperties": 0},
    "Operator": _fields(name=TEXT, role={"enum": ["viewer", "operator"]}),
    "Me": _fields(name=TEXT, role={"enum": ["viewer", "operator"]}, session=YES, login=YES),
    "Login": _fields(token=TEXT),
    "LoggedOut": _fields(ended=YES),
    "Mode": _fields(**_MODE),
    "Switch": _fields(("revert_after",), mode=TEXT, revert_after=DURATION),
    "Switched": _fields(**_MODE, **_CHANGED),
    "Policy": {"type": "object", "required": ["discipline", "bands"], "description": "See the settings reference."},
    "Change": _CHANGE,
    "Changed": _fields(**_CHANGED),
    "PreviewRequest": _fields(("service_time", "what_if"), policy={}, service_time=DURATION, what_if=_WANTED),
    "Preview": _fields(
        ("assumed",),
        valid=YES,
        errors=_list(ref("Problem")),
        changes=_list(_fields(**{"field": TEXT, "from": ANY, "to": ANY})),
        bounds=_map(_BOUND),
        assumed=_fields(service_s=NUMBER, seats=_map(WHOLE)),
        what_if=_or_null(ref("WhatIf")),
    ),
    "WhatIf": {"anyOf": [_fields(error=TEXT), _RAN]},
    "Backends": _fields(models=_list(_fields(name=TEXT, backends=_list({"type": "object"})))),
    "Draining": _fields(waiting=WHOLE, running=WHOLE),
    "Requests": _fields(
        requests=_list(_fields(id=TEXT, name=TEXT, band=TEXT, model=TEXT, tenant=TEXT, estimated_tokens=WHOLE)),
        complete=YES,
    ),
    "Why": _fields(
        id=TEXT,
        kind={"enum": [kind.value for kind in WhyKind]},
        detail=TEXT,
        gate=_or_null(ref("Gate")),
        waited_s=NUMBER,
        lends=_or_null(WHOLE),
        ahead=_or_null(WHOLE),
        expected_wait_s=_or_null(NUMBER),
        expires_in_s=_or_null(NUMBER),
    ),
    "Stopped": _fields(id=TEXT, stopped=YES),
    "Record": _fields(
        id=_or_null(WHOLE),
        at_utc=TIME,
        who=TEXT,
        action=TEXT,
        changes=_list(ref("Change")),
        undoes=_or_null(WHOLE),
        undone_by=_or_null(WHOLE),
        undoable=YES,
    ),
    "Records": _fields(records=_list(ref("Record")), complete=YES),
    "Undo": _fields(("force",), force=YES),
    "Undone": _fields(undone=WHOLE, **_CHANGED),
    "Key": _fields(id=TEXT, created_at_utc=_or_null(NUMBER), expires_at_utc=_or_null(NUMBER)),
    "Tenant": _fields(name=TEXT, source={"enum": ["file", "control"]}, **_TENANT, keys=_list(ref("Key"))),
    "Tenants": _fields(tenants=_list(ref("Tenant")), complete=YES),
    "NewTenant": _fields(tuple(_TENANT), name=TEXT, **{**_TENANT, "limits": _fields(tuple(_LIMITS), **_LIMITS)}),
    "NewKey": _fields(tenant=ref("Tenant"), key=TEXT),
    "KeyRequest": _fields(("replaces", "grace"), replaces=TEXT, grace=DURATION),
    "Deleted": _fields(name=TEXT, deleted=YES),
    "DeadLetters": _fields(dead_letters=_list({"type": "object"}), complete=YES),
}
