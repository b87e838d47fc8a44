"""The root of every exception that tidegate raises.

Refusals are values (``Reject``, ``Evict``), never exceptions; exceptions are for faults.
"""


class TidegateError(Exception):
    """Base class: the message says what was expected, what came, and which setting to look at."""


class PolicyError(TidegateError, ValueError):
    """A policy that contradicts itself. ``field`` is the dotted path of the setting at fault."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message
