"""How the control API reads and answers: JSON in bounded bodies, errors in OpenAI's form with every problem listed."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tidegate.config import ConfigError, Problem
from tidegate.core import PolicyError
from tidegate.stores import Conflict, NotFound, StoreError

MOST_BODY = 1024 * 1024
LISTED = 100
MOST_LISTED = 1000
JSON = "application/json"

_encoder = msgspec.json.Encoder(enc_hook=str, order="deterministic")


class SpokenError(Exception):
    """A request that is answered with an error."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        errors: list[dict[str, Any]] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.errors = errors
        self.headers = headers


def answer(value: object, status: int = 200) -> Response:
    """Answer with JSON; nobody between may keep it."""
    return Response(_encoder.encode(value), status, {"cache-control": "no-store"}, JSON)


def error_answer(error: SpokenError) -> Response:
    """Answer with an error."""
    kind = "permission_error" if error.status in (401, 403) else "invalid_request_error"
    kind = "server_error" if error.status >= 500 else kind
    body: dict[str, Any] = {"message": str(error), "type": kind, "param": error.param, "code": error.code}
    if error.errors is not None:
        body["errors"] = error.errors
    response = answer({"error": body}, error.status)
    response.headers.update(error.headers or {})
    return response


def problem_rows(error: ConfigError | PolicyError) -> list[dict[str, Any]]:
    """Return what keeps settings from being used: each place, what was expected there, what came, and it all in one."""
    problems = error.errors if isinstance(error, ConfigError) else (Problem(error.field, error.message),)
    return [
        {"field": p.path, "expected": p.expected, "got": p.came, "nearest": p.nearest, "message": _sentence(p)}
        for p in problems
    ]


def refused(error: ConfigError | PolicyError) -> SpokenError:
    """Say why settings are refused; the message is about the first problem, ``errors`` holds them all."""
    rows = problem_rows(error)
    more = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
    message, field = f"{rows[0]['message']}{more}", rows[0]["field"]
    return SpokenError(400, "invalid_settings", message, param=field or None, errors=rows)


def of_store(error: StoreError) -> SpokenError:
    """Say what a store cannot do."""
    if isinstance(error, NotFound):
        return SpokenError(404, "not_found", str(error))
    if isinstance(error, Conflict):
        return SpokenError(409, "conflict", str(error))
    return SpokenError(503, "store_unavailable", str(error))


def limit_of(request: Request) -> int:
    """Read how much a listing shall hold."""
    limit = number_of(request, "limit")
    if limit is None:
        return LISTED
    if not 1 <= limit <= MOST_LISTED:
        raise SpokenError(400, "bad_request", f"expected limit from 1 to {MOST_LISTED}", param="limit")
    return limit


def number_of(request: Request, name: str) -> int | None:
    """Read a whole number of the query."""
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise SpokenError(400, "bad_request", f"expected {name}, a whole number", param=name)
    return int(text)


def _sentence(problem: Problem) -> str:
    """All of it; what stands in a file that was read again is named with its line."""
    place = f"{problem.source}:{problem.line}:{problem.column}: " if problem.line else ""
    came = f", got {problem.came}" if problem.came else ""
    hint = f"; did you mean {problem.nearest!r}?" if problem.nearest else ""
    return place + f"{problem.path}: {problem.expected}{came}{hint}".removeprefix(": ")


async def read_json(request: Request) -> Any:
    """Read a request's JSON body.

    Raises:
        SpokenError: 415 for another content type or encoding, 413 for too much, 400 for what is no JSON or ends early.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in (JSON, "application/merge-patch+json"):
        raise SpokenError(415, "unsupported_media_type", f"expected content-type {JSON}, got {kind[:60]!r}")
    if request.headers.get("content-encoding"):
        raise SpokenError(415, "unsupported_media_type", "expected no content-encoding")
    body = await _read(request)
    if not body:
        return {}
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SpokenError(400, "bad_request", f"expected JSON: {error}") from None


async def _read(request: Request) -> bytearray:
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > MOST_BODY:
                headers = {"connection": "close"}
                raise SpokenError(413, "too_large", f"expected at most {MOST_BODY} bytes", headers=headers)
    except ClientDisconnect:  # nobody reads the answer, but nothing of the half request may be obeyed either
        raise SpokenError(400, "bad_request", "expected a whole body, got one that ended early") from None
    return body


def only(value: Any, *keys: str) -> dict[str, Any]:
    """Return a mapping that has no other keys than these.

    Raises:
        SpokenError: it is none, or has others.
    """
    if not isinstance(value, dict) or set(value) - set(keys):
        wanted = f"a JSON object with {', '.join(keys)}" if keys else "an empty JSON object"
        raise SpokenError(400, "bad_request", f"expected {wanted}")
    return value
