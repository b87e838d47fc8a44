"""Real engines for the benchmarks, as ``make test-engines`` installs them; each with one thread and small models."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidegate.testing.engines import EngineServer, engine_server

ROOT = Path(__file__).resolve().parents[1]
MODEL = "tiny"
CLASS = "tidegate.vllm_plugin.TidegateScheduler"
BLOCK = 32

LLAMA_FLAGS = [
    *("--alias", MODEL, "--host", "127.0.0.1", "--port", "{port}", "-t", "1", "-tb", "1", "--threads-http", "64"),
    *("--metrics", "--slots", "--no-ui", "--device", "none", "-fit", "off"),
    *("--temp", "1", "--top-k", "0", "--top-p", "1", "--min-p", "0"),
]
VLLM_FLAGS = [
    *("--served-model-name", MODEL, "--host", "127.0.0.1", "--port", "{port}", "--dtype", "bfloat16"),
    *("--enforce-eager", "--scheduling-policy", "priority", "--enable-prompt-tokens-details"),
    *("--block-size", str(BLOCK), "--max-model-len", "512", "--no-enable-log-requests"),
]
VLLM_ENVIRON = {
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "PYTHONPATH": str(ROOT / "src"),
}


class NotSetUpError(Exception):
    """An engine is not there; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Size:
    """How an engine is started.

    Attributes:
        slots: most requests that it runs.
        kv_tokens: of its memory.
        scheduler: of vLLM, by name; empty: its own.
    """

    slots: int
    kv_tokens: int
    scheduler: str = ""


@contextlib.contextmanager
def running(kind: str, size: Size, log: Path) -> Iterator[EngineServer]:
    """Run ``vllm`` or ``llamacpp`` with the slow model.

    Raises:
        NotSetUpError: it is not installed.
    """
    venv = ROOT / {"vllm": ".venv-vllm", "llamacpp": ".venv-llama"}[kind]
    file = venv / "engine.json"
    found = json.loads(file.read_text()) if file.exists() else {"reason": "not set up, run: make test-engines"}
    if "command" not in found:
        raise NotSetUpError(f"{kind}: {found['reason']}")
    command, model = list(found["command"]), venv / "models" / "slow"
    if kind == "vllm":
        blocks = size.kv_tokens // BLOCK + 1  # one is never used
        command += [str(model), *VLLM_FLAGS, "--num-gpu-blocks-override", str(blocks)]
        command += ["--max-num-seqs", str(size.slots)]
        command += ["--scheduler-cls", size.scheduler] if size.scheduler else []
    else:
        command += ["-m", f"{model}.gguf", "-np", str(size.slots), "-c", str(size.kv_tokens), *LLAMA_FLAGS]
    with engine_server(command, kind=kind, log=log, environ=VLLM_ENVIRON, start_s=180) as server:
        yield server
