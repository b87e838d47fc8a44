"""What a client's connection may take."""

from __future__ import annotations


class Limits:
    """Bounds of one client connection. Times in seconds, sizes in bytes.

    Attributes:
        max_connections: connections of all clients; the next one is told so and closed.
        max_head: request line and headers.
        head_timeout_s: from a request's first byte to the end of its headers.
        body_stall_s: longest gap between two pieces of a request body.
        write_stall_s: how long a client may leave its answer unread before its connection is cut.
        keep_alive_s: idle time between two requests. Longer than the 5 s after which common clients stop reusing a
            connection, so that they never send into one that is being closed.
    """

    __slots__ = ("body_stall_s", "head_timeout_s", "keep_alive_s", "max_connections", "max_head", "write_stall_s")

    def __init__(
        self,
        *,
        max_connections: int = 20_000,
        max_head: int = 65_536,
        head_timeout_s: float = 10.0,
        body_stall_s: float = 30.0,
        write_stall_s: float = 30.0,
        keep_alive_s: float = 75.0,
    ) -> None:
        self.max_connections = max_connections
        self.max_head = max_head
        self.head_timeout_s = head_timeout_s
        self.body_stall_s = body_stall_s
        self.write_stall_s = write_stall_s
        self.keep_alive_s = keep_alive_s
