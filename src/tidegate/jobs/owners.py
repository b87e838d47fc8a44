"""Who is alive: each run of a gateway holds a locked file named after it; the system unlocks it when the process ends.

So whoever gets the lock of another owner knows that this one is gone, and its rows can be taken back at once instead
of when their leases run out.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(r"gateway-[0-9a-f]{16}")


class Presence:
    """The lock of a run of a gateway, held until ``leave`` or the end of the process."""

    def __init__(self, folder: Path) -> None:
        self.owner = f"gateway-{secrets.token_hex(8)}"
        self._path = folder / self.owner
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def leave(self) -> None:
        """Give the lock up. The file stays until somebody has taken the rows back."""
        os.close(self._descriptor)


def is_gone(folder: Path, owner: str) -> bool:
    """Whether an owner is known to be gone. Without its lock file nothing is known: it may be on another machine."""
    if not _NAME.fullmatch(owner):
        return False
    try:
        descriptor = os.open(folder / owner, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def all_gone(folder: Path) -> list[str]:
    """Every owner that left its lock file here and is gone."""
    return [path.name for path in folder.iterdir() if is_gone(folder, path.name)]


def forget(folder: Path, owner: str) -> None:
    """Remove the lock file of an owner that is gone and holds nothing any more."""
    (folder / owner).unlink(missing_ok=True)
