"""``tidegate demo``: the main job under overload, first through one FIFO queue, then through tidegate."""

from tidegate.cli.demo._command import demo

__all__ = ["demo"]
