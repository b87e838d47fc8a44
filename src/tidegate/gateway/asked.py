"""A request that was understood."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.classify import Classified, ParsedBody, RawHeaders, Route


@dataclass(slots=True)
class Asked:
    """What the client wants, as it came and as it was read.

    Attributes:
        route: the endpoint.
        headers: as they came, names in lower case.
        raw: the body as it came; ``body`` is what was read of it.
        classified: tenant, band, pool, estimate.
    """

    route: Route
    headers: RawHeaders
    raw: bytes
    body: ParsedBody
    classified: Classified
