"""Fold what happened into metrics, and write one structured line per finished request."""

from tidegate.telemetry.log import Form, Log
from tidegate.telemetry.opening import open_log
from tidegate.telemetry.recorder import Recorder
from tidegate.telemetry.request_line import RequestLine

__all__ = ["Form", "Log", "Recorder", "RequestLine", "open_log"]
