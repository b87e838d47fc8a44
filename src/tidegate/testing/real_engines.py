"""llama.cpp and vLLM as ``make test-engines`` installs them: how tests and benchmarks start them, in one place.

Each runs on one thread with a small synthetic model, and is told to serve it as ``MODEL``. The environments are made by
``scripts/engines/set_up.py``; ``engine.json`` in each is the command that runs it, or why it could not be had.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidegate.testing.engines import EngineServer, engine_server

MODEL = "tiny"
FOLDERS = {"llamacpp": ".venv-llama", "vllm": ".venv-vllm"}
SCHEDULER = "tidegate.vllm_plugin.TidegateScheduler"
BLOCK = 32
"""Tokens in a block of vLLM's KV cache, the fewest that it allows on a CPU."""

LLAMA_FLAGS = (
    *("--alias", MODEL, "--host", "127.0.0.1", "--port", "{port}", "-t", "1", "-tb", "1"),
    *("--metrics", "--slots", "--no-ui", "--device", "none", "-fit", "off"),
    *("--temp", "1", "--top-k", "0", "--top-p", "1", "--min-p", "0"),
)
VLLM_FLAGS = (
    *("--served-model-name", MODEL, "--host", "127.0.0.1", "--port", "{port}", "--dtype", "bfloat16"),
    *("--enforce-eager", "--scheduling-policy", "priority", "--enable-prompt-tokens-details"),
    *("--block-size", str(BLOCK)),
)
VLLM_ENVIRON = {
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}
_START_S = 600.0


class NotSetUpError(Exception):
    """An engine is not there; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Size:
    """How an engine is started.

    Attributes:
        slots: most requests that it runs at a time.
        kv_tokens: of its memory, shared by all of them.
        context: most tokens of one request; llama.cpp has ``kv_tokens / slots`` instead.
    """

    slots: int
    kv_tokens: int
    context: int = 512


def command_of(root: Path, kind: str) -> list[str]:
    """Give the command of an engine that is set up in the clone at ``root``.

    Raises:
        NotSetUpError: it is not there.
    """
    file = root / FOLDERS[kind] / "engine.json"
    found = json.loads(file.read_text()) if file.exists() else {"reason": "not set up, run: make test-engines"}
    if "command" not in found:
        raise NotSetUpError(f"{FOLDERS[kind]}: {found['reason']}")
    return list(found["command"])


@contextlib.contextmanager
def llama_server(
    root: Path, log: Path, size: Size, *, model: str = "slow", more: tuple[str, ...] = (), nice: int = 5
) -> Iterator[EngineServer]:
    """Run llama.cpp's server.

    Args:
        root: the clone in which it is set up.
        log: file for its output.
        size: how large.
        model: ``tiny`` writes thousands of tokens a second, ``slow`` can be overloaded on demand.
        more: further flags.
        nice: see ``engine_server``.

    Raises:
        NotSetUpError: it is not there.
        RuntimeError: it does not start.
    """
    command = command_of(root, "llamacpp")
    file = root / FOLDERS["llamacpp"] / "models" / f"{model}.gguf"
    command += ["-m", str(file), "-np", str(size.slots), "-c", str(size.kv_tokens), *LLAMA_FLAGS, *more]
    with engine_server(command, kind="llamacpp", log=log, nice=nice) as server:
        yield server


@contextlib.contextmanager
def vllm_server(
    root: Path, log: Path, size: Size, *, model: str = "slow", more: tuple[str, ...] = (), nice: int = 5
) -> Iterator[EngineServer]:
    """Run vLLM with its priority policy, with our source tree in its path; arguments and errors as above."""
    command = command_of(root, "vllm")
    command += [str(root / FOLDERS["vllm"] / "models" / model), *VLLM_FLAGS]
    command += ["--num-gpu-blocks-override", str(size.kv_tokens // BLOCK + 1)]  # one is never used
    command += ["--max-num-seqs", str(size.slots), "--max-model-len", str(size.context), *more]
    environ = {**VLLM_ENVIRON, "PYTHONPATH": str(root / "src")}
    with engine_server(command, kind="vllm", log=log, environ=environ, start_s=_START_S, nice=nice) as server:
        yield server
