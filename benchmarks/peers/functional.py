"""Gateways with a priority feature under the same overload: ``python -m benchmarks.peers functional [NAME …]``.

Each stands alone before an engine of 4 seats x 250 ms, configured as its own documentation says; what it is given is in
``benchmarks/peers/configs``. A fresh gateway and engine for each situation.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import bytepath
from benchmarks.load import KEY
from benchmarks.peers import overload
from benchmarks.peers.commands import router_options
from benchmarks.peers.install import PACKAGES, NotThereError, python_peer, version_of
from benchmarks.peers.overload import Clients, Dress, Rows

CONFIGS = Path(__file__).with_name("configs")
START_S = 200.0


@dataclass(frozen=True, slots=True)
class Scene:
    """One situation, and what it asks of the configuration.

    Attributes:
        age: seconds after which low work counts as starved.
        room: requests that may wait.
        patience: seconds that one may wait.
    """

    play: Callable[[Clients], Coroutine[None, None, Rows]]
    age: str = "120"
    room: str = "1024"
    patience: str = "300"


SCENES = (
    Scene(lambda clients: overload.flood(clients, stream=False)),
    Scene(lambda clients: overload.flood(clients, stream=True)),
    Scene(overload.aged, age="2"),
    Scene(overload.full, room=str(overload.ROOM)),
    Scene(lambda clients: overload.stopped(clients, stream=False)),
    Scene(lambda clients: overload.stopped(clients, stream=True)),
    Scene(overload.impatient, patience="1"),
)

Start = Callable[[Path, int, str, Scene], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Peer:
    """One gateway: its command, how a request says how urgent it is, and what its engine does when it is full."""

    package: str
    start: Start
    dress: Dress
    busy: bool = False


def _file(name: str, folder: Path, port: int, backend: str, scene: Scene) -> Path:
    """Write a configuration with this run's addresses and this scene's values."""
    told: Mapping[str, str] = {
        "port": str(port),
        "backend": backend,
        "age": scene.age,
        "queue": scene.room,
        "patience": scene.patience,
        "digest": hashlib.sha256(KEY.encode()).hexdigest(),
    }
    path = folder / name
    path.write_text(Template((CONFIGS / name).read_text()).substitute(told))
    return path


def smg(folder: Path, port: int, backend: str, scene: Scene) -> Sequence[str]:
    """Its slots are the engine's own ``max_running_requests``, which it asks for; the option says the same."""
    return [
        *(str(python_peer("smg") / "smg"), "launch", *router_options(port, backend)),
        *("--max-concurrent-requests", "4", "--priority-scheduler-enabled"),
        *("--priority-scheduler-default-max-class", "interactive"),
        *("--priority-scheduler-config", str(_file("smg.yaml", folder, port, backend, scene))),
    ]


def _litellm(name: str) -> Start:
    def start(folder: Path, port: int, backend: str, scene: Scene) -> Sequence[str]:
        path = _file(name, folder, port, backend, scene)
        options = ["--config", str(path), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
        return ["env", "REPEATED_STREAMING_CHUNK_LIMIT=1000000", str(python_peer("litellm") / "litellm"), *options]

    return start


def tidegate(folder: Path, port: int, backend: str, scene: Scene) -> Sequence[str]:
    """The preset as it ships."""
    path = _file("tidegate.yaml", folder, port, backend, scene)
    return [sys.executable, "-m", "tidegate", "serve", "-c", str(path)]


def _named(header: bytes, high: bytes, low: bytes) -> Dress:
    return lambda urgent: ([(b"authorization", f"Bearer {KEY}".encode()), (header, high if urgent else low)], {})


def _numbered(urgent: bool) -> tuple[overload.Headers, dict[str, object]]:
    return [], {"priority": 0 if urgent else 100}


PEERS = {
    "SMG": Peer("smg", smg, _named(b"x-smg-priority", b"interactive", b"bulk")),
    "LiteLLM": Peer("litellm", _litellm("litellm.yaml"), _numbered),
    "LiteLLM, engine says 429": Peer("litellm", _litellm("litellm-busy.yaml"), _numbered, busy=True),
    "tidegate": Peer("", tidegate, _named(b"x-tidegate-band", b"p0", b"p2")),
}


def main(names: Sequence[str]) -> None:
    """Play everything with ``names``, or with all."""
    unknown = sorted(set(names) - set(PEERS))
    if unknown:
        raise SystemExit(f"expected some of {', '.join(PEERS)}; got {', '.join(unknown)}")
    chosen = [name for name in PEERS if not names or name in names]
    bytepath.START_S = START_S
    console = Console()
    found: dict[str, Rows] = {name: {} for name in chosen}
    with Progress(console=console) as progress:
        task = progress.add_task("peers", total=len(SCENES) * len(chosen))
        for name in chosen:
            for number, scene in enumerate(SCENES):
                progress.update(task, description=f"{name}, {number + 1} of {len(SCENES)}")
                try:
                    found[name] |= _play(PEERS[name], scene)
                except (NotThereError, RuntimeError) as problem:
                    console.print(f"{name}: {problem}")
                progress.advance(task)
    console.print(_table(found))


def _play(peer: Peer, scene: Scene) -> Rows:
    with TemporaryDirectory() as folder, _engine(busy=peer.busy) as engine:
        start = peer.start
        with bytepath.proxy(lambda port, to: start(Path(folder), port, to, scene), engine) as (_, url):
            before = _told(engine)
            rows = asyncio.run(_played(Clients(url, peer.dress), scene))
            after = _told(engine)
    first = next(iter(rows)).partition(":")[0]
    if after["left"] > before["left"]:
        rows[f"{first}: left the engine before their end"] = str(after["left"] - before["left"])
    if after["waited"] > before["waited"]:
        rows[f"{first}: had to wait inside the engine"] = str(after["waited"] - before["waited"])
    return rows


async def _played(clients: Clients, scene: Scene) -> Rows:
    try:
        return await scene.play(clients)
    finally:
        await clients.told()


@contextlib.contextmanager
def _engine(*, busy: bool) -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.peers.engine", *(["--busy"] if busy else [])]
    with subprocess.Popen(command, cwd=bytepath.ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def _told(engine: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{engine}/told", timeout=10) as page:
        told: dict[str, int] = json.load(page)
    return told


def _table(found: Mapping[str, Rows]) -> Table:
    table = Table("", title="an engine of 4 seats x 250 ms", show_lines=True)
    for name in found:
        package = PEERS[name].package
        table.add_column(f"{name} {version_of(package)}" if package in PACKAGES else name)
    measures = list(dict.fromkeys(measure for rows in found.values() for measure in rows))
    for measure in measures:
        table.add_row(measure, *(rows.get(measure, "") for rows in found.values()))
    return table
