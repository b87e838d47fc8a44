"""Answers of the batch API: JSON, errors as OpenAI writes them, and which fault of ours becomes which of them."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from tidegate.classify import Tenant
from tidegate.jobs.multipart import MultipartError
from tidegate.jobs.uploads import UploadError
from tidegate.jobs.wishes import WishError, error_document
from tidegate.stores import Conflict, Full, NotFound, StoreError

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
log = structlog.get_logger("tidegate.jobs")
Answering = Callable[[Request], Awaitable[Response]]


class AnswerError(Exception):
    """Carries an answer that is ready."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


def route(path: str, methods: dict[str, Answering]) -> Route:
    """Make a route; what its methods raise becomes an answer."""

    async def endpoint(request: Request) -> Response:
        call = methods["GET" if request.method == "HEAD" else request.method]
        try:
            return await call(request)
        except AnswerError as error:
            return error.response
        except (WishError, UploadError, MultipartError) as error:
            return bad(str(error), getattr(error, "param", None), getattr(error, "status", 400))
        except NotFound as error:
            return bad(str(error), None, 404, code="not_found")
        except Conflict as error:
            return bad(str(error), None, 409, code="conflict")
        except Full:
            return _full()
        except StoreError as error:
            return _unavailable(str(error))
        except ClientDisconnect:
            return Response(status_code=400)
        except OSError as error:
            return _full() if error.errno in FULL else _unavailable(f"the folder of files: {error.strerror}")

    return Route(path, endpoint, methods=[*methods])


def tenant_of(request: Request) -> Tenant:
    """Who asks, as whoever mounted the app has found."""
    tenant: Tenant = request.state.tenant
    return tenant


def answer(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Answer with JSON."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def bad(message: str, param: str | None, status: int, code: str = "bad_request") -> Response:
    """Answer that the request is wrong."""
    return answer(error_document(message, code=code, param=param, kind="invalid_request_error"), status)


def _full() -> Response:
    message = "The gateway's disk or store for batches is full. What was accepted goes on."
    document = error_document(message, code="storage_full", param=None, kind="server_error")
    return answer(document, 507, {"x-should-retry": "false"})


def _unavailable(why: str) -> Response:
    """Answer that the store cannot do it now. Why is for the operator: it may name a host or a path."""
    log.warning("jobs.store", error=why)
    message = "The gateway's store for batches cannot do this now. What was accepted is kept."
    document = error_document(message, code="store_unavailable", param=None, kind="server_error")
    return answer(document, 503, {"retry-after": "5"})


async def no_route(request: Request, _: Exception) -> Response:
    """Answer that there is no such path."""
    return bad(f"there is no {request.method} {request.url.path[:200]}", None, 404)


async def wrong_method(request: Request, error: Exception) -> Response:
    """Answer that the path has other methods."""
    response = bad(f"expected another method than {request.method}", None, 405)
    response.headers.update(getattr(error, "headers", None) or {})
    return response
