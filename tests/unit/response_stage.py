"""Responses without an engine: what comes, comes from the test."""

from __future__ import annotations

import asyncio

from tidegate.backends import Response, Reuse
from tidegate.backends.connection import Connection, Owner
from tidegate.backends.ground import Ground, Limits


def response_of_test() -> Response:
    """Give one that waits for its head on a connection that was never made."""
    ground = Ground(asyncio.get_running_loop())
    limits = Limits(None, None, max_head=1 << 16, high_water=1 << 18, reuse=Reuse.ALWAYS)
    return Response(ground, Connection(Owner(), ground, limits, "gpu-a"), reused=False)
