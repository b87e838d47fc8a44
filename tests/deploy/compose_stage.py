"""The stack of ``deploy/compose.yaml`` as processes on the loopback address, working by the files that are shipped.

What differs from the containers is where things are: each name and port of the files is replaced by one of this
machine, and a name that is not there fails the test.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from tidegate.testing.gateway_process import GatewayProcess, gateway_process
from tidegate.testing.postgres import postgres_process
from tidegate.testing.processes import end, engine_process
from tidegate.testing.valkey import valkey_process

DEPLOY = Path(__file__).parents[2] / "deploy"
HAPROXY = shutil.which("haproxy") or shutil.which("/usr/sbin/haproxy")
PROMETHEUS = shutil.which("prometheus")
GATEWAYS = 3


def services() -> dict[str, Any]:
    """The services of the compose file."""
    return cast("dict[str, Any]", yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"])


def made_env(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Run ``make_env.py`` in a folder; return what it wrote, and what it showed by name."""
    script = folder / "make_env.py"
    shutil.copy(DEPLOY / "make_env.py", script)
    done = subprocess.run(["python3", str(script)], capture_output=True, text=True, check=True)
    written = dict(line.split("=", 1) for line in (folder / ".env").read_text().splitlines())
    shown = dict(re.findall(r"^  (\S.*\S):\s+(\S+)$", done.stdout, re.MULTILINE))
    return written, shown


def moved(text: str, places: Mapping[str, str]) -> str:
    """Replace what names other containers."""
    for old, new in places.items():
        assert old in text, f"expected {old!r} in the shipped file"
        text = text.replace(old, new)
    return text


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(say: Callable[[], Any], seconds: float = 40.0) -> Any:
    """Wait until something is said that is true; what cannot be asked yet says nothing."""
    end, found = time.monotonic() + seconds, None
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            found = say()
            if found:
                return found
        time.sleep(0.05)
    raise AssertionError(f"it took too long, last: {found}")


def ask(url: str, key: str = "", body: object = None) -> Any:
    """Ask for JSON."""
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=40) as answer:
        return json.load(answer)


def chat(tokens: int, *, stream: bool = False) -> dict[str, Any]:
    """A chat request."""
    return {
        "model": "demo",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": stream,
    }


@dataclass(slots=True)
class Stack:
    """What runs.

    Attributes:
        url: of the balancer, for clients.
        control: of the balancer, for operators.
        gateways: behind it.
        keys: by what ``make_env.py`` said of them.
    """

    url: str
    control: str
    gateways: list[GatewayProcess]
    keys: dict[str, str]

    @property
    def checkout(self) -> str:
        """The key of p0."""
        return self.keys["key of tenant checkout (p0)"]

    @property
    def analytics(self) -> str:
        """The key of p2."""
        return self.keys["key of tenant analytics (p2)"]

    @property
    def duty(self) -> str:
        """The operator's token."""
        return self.keys["token of operator duty"]

    def running(self) -> float:
        """Requests that hold a seat, at all gateways that answer."""
        found = 0.0
        for gateway in self.gateways:
            with contextlib.suppress(OSError):
                found += gateway.total("tidegate_running")
        return found


@contextlib.contextmanager
def stack(folder: Path) -> Iterator[Stack]:
    """Start everything, and wait until the balancer lets somebody through."""
    environ, keys = made_env(folder)
    with ExitStack() as running:
        valkey = running.enter_context(valkey_process(options=["--requirepass", environ["VALKEY_PASSWORD"]]))
        postgres = running.enter_context(postgres_process())
        engines = [running.enter_context(engine_process(**_options(name))) for name in ("engine-1", "engine-2")]
        config = moved(
            (DEPLOY / "compose" / "tidegate.yaml").read_text(encoding="utf-8"),
            {
                "http://engine-1:8000": engines[0],
                "http://engine-2:8000": engines[1],
                "/var/lib/tidegate/files": str(folder / "files"),
            },
        )
        wanted = {name: environ[name] for name in services()["gateway"]["environment"]}
        wanted["DATABASE_URL"] = postgres.url
        wanted["STORE_URL"] = moved(wanted["STORE_URL"], {"@valkey:6379": f"@127.0.0.1:{valkey.port}"})
        gateways = [running.enter_context(gateway_process(config=config, environ=wanted)) for _ in range(GATEWAYS)]
        clients, control = free_port(), free_port()
        balancer = folder / "haproxy.cfg"
        balancer.write_text(balancer_config(gateways, clients, control))
        running.enter_context(_process([cast("str", HAPROXY), "-db", "-f", str(balancer)], folder / "haproxy.log"))
        found = Stack(f"http://127.0.0.1:{clients}", f"http://127.0.0.1:{control}", gateways, keys)
        until(lambda: ask(f"{found.url}/v1/models", found.checkout))
        yield found


def balancer_config(gateways: list[GatewayProcess], clients: int, control: int) -> str:
    """The balancer's file, with a line for each gateway in place of the name that Docker would look up."""
    text = (DEPLOY / "compose" / "haproxy.cfg").read_text(encoding="utf-8")
    places = {"bind :8400": f"bind 127.0.0.1:{clients}", "bind :8401": f"bind 127.0.0.1:{control}"}
    places["maxconn 16000"] = "maxconn 1000"  # a usual shell does not allow as many files as the container has
    for name, ports in (("gateway", [each.url for each in gateways]), ("control", [each.control for each in gateways])):
        number = {"gateway": 8400, "control": 8401}[name]
        servers = [f"server {name}-{n} {url.removeprefix('http://')}" for n, url in enumerate(ports)]
        places[f"server-template {name} 8 gateway:{number} resolvers docker init-addr none"] = "\n  ".join(servers)
    return moved(text, places)


@contextlib.contextmanager
def prometheus(folder: Path, gateways: list[GatewayProcess]) -> Iterator[str]:
    """Run Prometheus by the shipped files on the gateways; yields its URL."""
    targets = [each.control.removeprefix("http://") for each in gateways]
    text = moved(
        (DEPLOY / "prometheus" / "prometheus.yaml").read_text(encoding="utf-8"),
        {
            "dns_sd_configs:\n      - {names: [gateway], type: A, port: 8401, refresh_interval: 5s}": (
                f"static_configs: [{{targets: {json.dumps(targets)}}}]"
            ),
            "scrape_interval: 5s": "scrape_interval: 1s",
        },
    )
    (folder / "prometheus.yaml").write_text(text)
    shutil.copy(DEPLOY / "prometheus" / "tidegate-alerts.yaml", folder)
    port = free_port()
    options = [f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/tsdb"]
    options += [f"--web.listen-address=127.0.0.1:{port}"]
    with _process([cast("str", PROMETHEUS), *options], folder / "prometheus.log"):
        yield f"http://127.0.0.1:{port}"


def _options(name: str) -> dict[str, str]:
    """The engine's options in the compose file, without its address."""
    words = services()[name]["command"][1:]
    found = dict(zip(words[::2], words[1::2], strict=True))
    del found["--listen"]
    return {option.removeprefix("--").replace("-", "_"): value for option, value in found.items()}


@contextlib.contextmanager
def _process(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        yield process
    finally:
        end(process)
