"""A SIGHUP that comes while the command still starts: noted at once, obeyed when somebody can.

Without a handler it would end the process, and a second is long for who writes a file and says so.
"""

from __future__ import annotations

import signal

_noted: list[int] = []


def hold() -> None:
    """Note what comes from now on; call it before anything that takes time."""
    signal.signal(signal.SIGHUP, lambda number, _: _noted.append(number))


def came() -> bool:
    """Say once whether one has come; call it when the handler that obeys is in place."""
    found = bool(_noted)
    _noted.clear()
    return found
