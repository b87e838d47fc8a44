"""The driver of PostgreSQL is an extra: without it, everything else works and the error says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tidegate.stores
from tidegate.stores import StoreError, open_job_store


def test_without_the_driver_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "tidegate.stores.postgres_database", raising=False)
    with pytest.raises(StoreError, match=r"pip install 'tidegate\[postgres\]'"):
        open_job_store("postgresql://localhost/jobs")


def test_the_driver_is_loaded_only_when_it_is_needed() -> None:
    code = (
        "import sys, tidegate.stores as stores; stores.open_job_store('sqlite:///:memory:').close(); "
        "assert 'psycopg' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


_NAMES = """
Answer Batch BatchFault BatchState BatchWork Bury Claim Conflict DeadLetter Duplicate FinalRecord Finish Full GiveBack
JobStore LeasedRow NewBatch NewRow NotFound Order Overview RecordKind Redriven Retry RowState Settled StoreError
StoredFile Unavailable Verdict open_job_store
HOUR_S MEMORY_URL KnobStore NewChange StoredChange StoredKey StoredTenant Usage UsageRow open_knob_store
"""


def test_the_public_names_are_these() -> None:
    assert sorted(tidegate.stores.__all__) == sorted(_NAMES.split())
    assert all(hasattr(tidegate.stores, name) for name in tidegate.stores.__all__)
