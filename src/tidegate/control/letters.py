"""``/admin/dead-letters``: rows of batches that used up their attempts; look at them, send them again, let them go."""

from __future__ import annotations

from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from tidegate.control.audit import Audit
from tidegate.control.operators import Operator
from tidegate.control.speech import SpokenError, answer, limit_of


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

    def __init__(self, letters: Letters | None, audit: Audit) -> None:
        self._given = letters
        self._audit = audit

    async def listed(self, request: Request, _: Operator) -> Response:
        """List them, in order of batches and lines."""
        limit = limit_of(request)
        try:
            found = await self._letters.dead_letters(request.query_params.get("after"), limit + 1)
        except ValueError as error:
            raise _spoken(error) from None
        return answer({"dead_letters": found[:limit], "complete": len(found) <= limit})

    async def redriven(self, request: Request, who: Operator) -> Response:
        """Send again."""
        letter = request.path_params["id"]
        try:
            done = await self._letters.redrive(letter)
        except ValueError as error:
            raise _spoken(error) from None
        return await self._noted(who, letter, "redriven", done)

    async def discarded(self, request: Request, who: Operator) -> Response:
        """Take off the list."""
        letter = request.path_params["id"]
        try:
            done = await self._letters.discard(letter)
        except ValueError as error:
            raise _spoken(error) from None
        return await self._noted(who, letter, "discarded", done)

    async def _noted(self, who: Operator, letter: str, became: str, done: dict[str, Any]) -> Response:
        self._audit.add(who.name, "dead-letter", [(f"dead-letters.{letter}", "dead", {became: done})])
        await self._audit.settled()
        return answer(done)

    @property
    def _letters(self) -> Letters:
        if self._given is None:
            raise SpokenError(404, "not_found", "batch jobs are not set up: the settings have no block jobs")
        return self._given


def _spoken(error: ValueError) -> SpokenError:
    return SpokenError(400, "bad_request", str(error), param="id")
