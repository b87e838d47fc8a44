"""A request that was understood."""

from __future__ import annotations

from typing import Final

import msgspec

from tidegate.classify import Classified, HeaderNames, ParsedBody, Place, RawHeaders, Route
from tidegate.core.compiling import mypyc_attr


@mypyc_attr(acyclic=True)
class Asked:
    """What the client wants, as it came and as it was read.

    Attributes:
        route: the endpoint.
        headers: as they came, names in lower case.
        raw: the body as it came; ``body`` is what was read of it.
        classified: tenant, band, pool, estimate.
        target: path upstream where it is not the route's.
        form: whether the body is a form instead of JSON.
        model_at: where a form names its model.
        names: what the names of ``headers`` say, where they have been read.
        plain: whether a fallback may answer it, where that is known although ``body`` has been let go.
        size: length of ``raw`` where that has been let go.
    """

    __slots__ = (
        "body", "classified", "form", "headers", "model_at", "names", "plain", "raw", "route", "size", "target",
    )  # fmt: skip

    def __init__(
        self,
        route: Route,
        headers: RawHeaders,
        raw: bytes,
        body: ParsedBody,
        classified: Classified,
        *,
        target: bytes = b"",
        form: bool = False,
        model_at: Place | None = None,
        names: HeaderNames | None = None,
    ) -> None:
        self.route = route
        self.headers = headers
        self.raw = raw
        self.body = body
        self.classified = classified
        self.target = target
        self.form = form
        self.model_at = model_at
        self.names = names
        self.plain: bool | None = None
        self.size = 0

    def let_go(self) -> None:
        """Drop the body once nobody needs it any more: a stream lasts long, and a prompt may be large.

        Every raw field keeps the whole body alive, so all of them go.
        """
        self.raw = b""
        for name in _RAW:
            setattr(self.body, name, ABSENT)


ABSENT: Final = msgspec.Raw()
_RAW: Final = [field.name for field in msgspec.structs.fields(ParsedBody) if field.type is msgspec.Raw]
