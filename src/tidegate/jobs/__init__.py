"""Durable batch jobs: OpenAI's Files and Batch API over a row store, sent through the same scheduler as all else.

``worker`` is a process of its own (parsing, commits, files), ``link`` the gateway's end of the socket to it, ``pump``
what keeps a window of rows in the scheduler, ``routes`` the API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.jobs.service import Jobs

__all__ = ["Jobs"]


def __getattr__(name: str) -> object:
    """Import what the gateway needs when it is asked for: the worker starts three times as fast without it."""
    if name == "Jobs":
        from tidegate.jobs.service import Jobs

        return Jobs
    raise AttributeError(name)
