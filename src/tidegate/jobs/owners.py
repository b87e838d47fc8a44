"""Who is alive: each run of a gateway holds a locked file named after it; the system unlocks it when the process ends.

So whoever gets the lock of another owner knows that this one is gone, and its rows can be taken back at once instead
of when their leases run out.

Between machines that is no proof: on many shared file systems a lock is one of the machine alone that took it, and
everybody else gets it too. An owner's name therefore begins with that of the kernel it runs under, and where gateways
of several machines may share the folder, only those of the same kernel are judged by their locks.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import secrets
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(r"gateway-(?:(?P<kernel>[0-9a-f]{8})-)?[0-9a-f]{16}")
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


def kernel() -> str:
    """Name the running kernel: another one after each start of the machine, the same one in all its containers."""
    try:
        text = _BOOT.read_text(encoding="ascii")
    except OSError:
        text = platform.node()
    return hashlib.sha256(text.strip().encode()).hexdigest()[:8]


class Presence:
    """The lock of a run of a gateway, held until ``leave`` or the end of the process."""

    def __init__(self, folder: Path) -> None:
        self.owner = f"gateway-{kernel()}-{secrets.token_hex(8)}"
        self._path = folder / self.owner
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def leave(self) -> None:
        """Give the lock up. The file stays until somebody has taken the rows back."""
        os.close(self._descriptor)


def is_gone(folder: Path, owner: str, *, under: str | None = None) -> bool:
    """Whether an owner is known to be gone. Without its lock file nothing is known: it may be on another machine.

    Args:
        folder: of the lock files.
        owner: its name.
        under: the kernel whose locks can be believed; ``None`` where all owners are on this machine.
    """
    name = _NAME.fullmatch(owner)
    if name is None or (under is not None and name["kernel"] != under):
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


def all_gone(folder: Path, *, under: str | None = None) -> list[str]:
    """Every owner that left its lock file here and is known to be gone; ``under`` as for ``is_gone``."""
    return [path.name for path in folder.iterdir() if is_gone(folder, path.name, under=under)]


def forget(folder: Path, owner: str) -> None:
    """Remove the lock file of an owner that is gone and holds nothing any more."""
    (folder / owner).unlink(missing_ok=True)


def refresh(folder: Path, owner: str, now_utc: float) -> None:
    """Show that an owner was alive then, for ``long_silent`` on other machines."""
    try:
        os.utime(folder / owner, (now_utc, now_utc))
    except FileNotFoundError:
        return  # taken for gone: its leases run out by themselves


def long_silent(folder: Path, before_utc: float) -> list[str]:
    """Owners that were not refreshed since then: on machines that never came back, whose locks nobody can judge."""
    found = []
    for path in folder.iterdir():
        try:
            if _NAME.fullmatch(path.name) and path.stat().st_mtime < before_utc:
                found.append(path.name)
        except FileNotFoundError:
            continue  # another gateway was faster
    return found
