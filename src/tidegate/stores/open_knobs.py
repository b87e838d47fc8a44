"""From the setting ``control.store`` to a store."""

from __future__ import annotations

from typing import Final

from tidegate.stores.knobs_protocol import KnobStore
from tidegate.stores.open_database import open_on_database
from tidegate.stores.sql_knobs import SETTING, SqlKnobStore

MEMORY_URL: Final = "sqlite:///:memory:"


def open_knob_store(url: str) -> KnobStore:
    """Open a control store and bring its tables up to date. It may share a database with the job store.

    Args and errors: as of ``open_on_database``.
    """
    return open_on_database(url, SqlKnobStore, setting=SETTING)
