"""``/admin/dead-letters``: rows of batches that used up their attempts; look at them, send them again, let them go."""

from __future__ import annotations

from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from tidegate.control.operators import Operator
from tidegate.control.speech import SpokenError, answer
from tidegate.stores import Conflict, NotFound, StoreError

LISTED = 100
MOST_LISTED = 1000


class Letters(Protocol):
    """Keeps dead letters. All methods raise ``ValueError`` for what is no id, and ``StoreError``."""

    async def dead_letters(self, after: str | None, limit: int) -> list[dict[str, Any]]:
        """A page of them, after the one with id ``after``."""
        ...

    async def redrive(self, letter: str) -> dict[str, Any]:
        """Send one again, or with the id of a batch all of it; tells in which batch, and how many rows."""
        ...

    async def discard(self, letter: str) -> dict[str, Any]:
        """Take one off the list, or with the id of a batch all of it; tells how many rows."""
        ...


class DeadLetters:
    """Answers the routes."""

    def __init__(self, letters: Letters | None) -> None:
        self._given = letters

    async def listed(self, request: Request, _: Operator) -> Response:
        """List them, in order of batches and lines."""
        limit = request.query_params.get("limit", str(LISTED))
        if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:9]) <= MOST_LISTED:
            raise SpokenError(400, "bad_request", f"expected limit, 1 to {MOST_LISTED}", param="limit")
        try:
            found = await self._letters.dead_letters(request.query_params.get("after"), int(limit) + 1)
        except (ValueError, StoreError) as error:
            raise _spoken(error) from None
        return answer({"dead_letters": found[: int(limit)], "complete": len(found) <= int(limit)})

    async def redriven(self, request: Request, _: Operator) -> Response:
        """Send again."""
        try:
            return answer(await self._letters.redrive(request.path_params["id"]))
        except (ValueError, StoreError) as error:
            raise _spoken(error) from None

    async def discarded(self, request: Request, _: Operator) -> Response:
        """Take off the list."""
        try:
            return answer(await self._letters.discard(request.path_params["id"]))
        except (ValueError, StoreError) as error:
            raise _spoken(error) from None

    @property
    def _letters(self) -> Letters:
        if self._given is None:
            raise SpokenError(404, "not_found", "batch jobs are not set up: the settings have no block jobs")
        return self._given


def _spoken(error: Exception) -> SpokenError:
    if isinstance(error, NotFound):
        return SpokenError(404, "not_found", str(error))
    if isinstance(error, Conflict):
        return SpokenError(409, "conflict", str(error))
    if isinstance(error, StoreError):
        return SpokenError(503, "store_unavailable", str(error))
    return SpokenError(400, "bad_request", str(error), param="id")
