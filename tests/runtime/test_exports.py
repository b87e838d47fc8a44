from __future__ import annotations

from types import ModuleType

import pytest

from tidegate import control, runtime, telemetry

EXPORTS = [
    (
        runtime,
        "Clock Driver EventLog FutureWaiter GcPolicy ObservedLog Parted Refusal Rounds StallMonitor SystemClock "
        "TicketWaiter replay",
    ),
    (telemetry, "Form Log Recorder RequestLine open_log"),
    (control, "Apply Audit Books Feed Hooks Keeper Live ModeState Record Sharing build_control_app"),
]


@pytest.mark.parametrize(("room", "names"), EXPORTS)
def test_public_names_grow_by_decision_only(room: ModuleType, names: str) -> None:
    assert room.__all__ == names.split()
    assert all(hasattr(room, name) for name in room.__all__)
