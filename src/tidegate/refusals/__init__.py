"""From a reason to the answer that says it: status, headers, body, and the fallback answer. Pure tables."""

from tidegate.refusals.answer import (
    Answer,
    Storm,
    answer_for,
    error_body,
    error_event,
    retry_headers,
    retry_seconds,
)
from tidegate.refusals.fallback import MESSAGES, Fallbacks
from tidegate.refusals.table import TABLE, Retry, Row

__all__ = [
    "MESSAGES",
    "TABLE",
    "Answer",
    "Fallbacks",
    "Retry",
    "Row",
    "Storm",
    "answer_for",
    "error_body",
    "error_event",
    "retry_headers",
    "retry_seconds",
]
