"""The control port: dashboard, metrics, health, live changes of policy, mode and backends, and the list of changes."""

from tidegate.control.admin import Hooks
from tidegate.control.app import build_control_app
from tidegate.control.audit import Audit, Record
from tidegate.control.books import Books
from tidegate.control.events import Feed
from tidegate.control.keeper import Keeper
from tidegate.control.live import Apply, Live, ModeState
from tidegate.control.sharing import Sharing

__all__ = [
    "Apply",
    "Audit",
    "Books",
    "Feed",
    "Hooks",
    "Keeper",
    "Live",
    "ModeState",
    "Record",
    "Sharing",
    "build_control_app",
]
