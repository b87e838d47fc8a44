"""Fold what happened into metrics, and write one structured line per finished request."""

from tidegate.telemetry.recorder import Recorder

__all__ = ["Recorder"]
