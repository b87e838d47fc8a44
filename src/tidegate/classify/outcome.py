"""What classification answers when a request cannot go on."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.core import Reason


@dataclass(slots=True)
class Refused:
    """A request that is refused before the scheduler sees it.

    Attributes:
        reason: row of the refusal table.
        detail: what was expected and what came, for the client.
        param: the field or header that is meant, as OpenAI's ``error.param``.
        status: another status than the row's (403 for a foreign ``Host``, 415 for a content type); else ``None``.
        code: another ``error.code`` than the row's; else ``None``.
    """

    reason: Reason
    detail: str
    param: str | None = None
    status: int | None = None
    code: str | None = None
