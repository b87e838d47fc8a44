"""What classification answers when a request cannot go on."""

from __future__ import annotations

from typing import Final

from tidegate.core import Reason
from tidegate.core.compiling import mypyc_attr


@mypyc_attr(acyclic=True)
class Refused:
    """A request that is refused before the scheduler sees it.

    Written out, since every request is asked several times whether it is one: compiled, that compares two pointers.

    Attributes:
        reason: row of the refusal table.
        detail: what was expected and what came, for the client.
        param: the field or header that is meant, as OpenAI's ``error.param``.
        status: another status than the row's (403 for a foreign ``Host``, 415 for a content type); else ``None``.
        code: another ``error.code`` than the row's; else ``None``.
    """

    __slots__ = ("code", "detail", "param", "reason", "status")

    def __init__(
        self,
        reason: Reason,
        detail: str,
        param: str | None = None,
        status: int | None = None,
        code: str | None = None,
    ) -> None:
        self.reason: Final = reason
        self.detail: Final = detail
        self.param: Final = param
        self.status: Final = status
        self.code: Final = code
