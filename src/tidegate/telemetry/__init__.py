"""Fold what happened into metrics, and write one structured line per finished request."""

from tidegate.telemetry.log import Form, Log, RequestLine, open_log
from tidegate.telemetry.recorder import Recorder

__all__ = ["Form", "Log", "Recorder", "RequestLine", "open_log"]
