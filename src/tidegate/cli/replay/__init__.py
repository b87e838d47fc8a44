"""``tidegate replay``: a scenario's load sent to a live gateway, as a rehearsal."""

from tidegate.cli.replay._command import replay

__all__ = ["replay"]
