"""The simulated engine as an OpenAI-compatible server on the real clock, with vLLM's metric names."""

from tidegate.simserver.app import EngineApp
from tidegate.simserver.faults import Fault, FaultKind, RetryForm
from tidegate.simserver.options import EngineOptions
from tidegate.simserver.server import running_engine, serve_engine
from tidegate.simserver.text import filler_text, tokens_of

__all__ = [
    "EngineApp",
    "EngineOptions",
    "Fault",
    "FaultKind",
    "RetryForm",
    "filler_text",
    "running_engine",
    "serve_engine",
    "tokens_of",
]
