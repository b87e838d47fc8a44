"""From the setting ``jobs.store`` to a store."""

from __future__ import annotations

from tidegate.stores.jobs_protocol import JobStore
from tidegate.stores.open_database import open_on_database
from tidegate.stores.sql_store import SqlJobStore


def open_job_store(url: str, *, max_bytes: int | None = None) -> JobStore:
    """Open a job store and bring its tables up to date.

    Args and errors: as of ``open_on_database``.
    """
    return open_on_database(url, SqlJobStore, setting="jobs.store", max_bytes=max_bytes)
