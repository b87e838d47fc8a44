"""Hold answers of the control port to its OpenAPI document."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from starlette.routing import Route

from tidegate.control.openapi import document

DOCUMENT = document()
SEEN: set[tuple[str, str, int]] = set()
"""Path, method and status of every answer that was held to it in this process."""


def template_of(route: Route) -> str:
    """A route's path as OpenAPI writes it."""
    return re.sub(r"\{(\w+):\w+\}", r"{\1}", route.path)


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    paths = sorted(DOCUMENT["paths"], key=lambda path: path.count("{"))
    return [
        (re.compile(re.sub(r"\\\{\w+\\\}", ".+" if "requests" in path else "[^/]+", re.escape(path))), path)
        for path in paths
    ]


@cache
def _validator(path: str, method: str, status: int) -> Draft202012Validator | None:
    operation = DOCUMENT["paths"][path].get(method)
    assert operation is not None, f"{method} {path} is not in the document"
    response = operation["responses"].get(str(status))
    assert response is not None, f"{method} {path} may answer {status}, says nobody"
    schema = response["content"].get("application/json", {}).get("schema")
    return None if schema is None else Draft202012Validator({**schema, "components": DOCUMENT["components"]})


def hold(method: str, target: str, status: int, kind: str, body: bytes) -> None:
    """Fail when an answer is not as the document says."""
    path = next((path for pattern, path in _patterns() if pattern.fullmatch(target)), None)
    if path is None or status == 405:
        assert not target.startswith("/admin") or status in (403, 404, 405), f"{target} is not in the document"
        return
    validator = _validator(path, method.lower(), status)
    SEEN.add((path, method.lower(), status))
    if kind != "application/json":
        assert validator is None or status != 200, f"{method} {path} answered {kind}"
        return
    assert validator is not None, f"{method} {path} answered JSON"
    answer: Any = json.loads(body)
    problems = [
        f"{method} {path} {status}: {error.json_path}: {error.message}" for error in validator.iter_errors(answer)
    ]
    assert not problems, problems[0]
