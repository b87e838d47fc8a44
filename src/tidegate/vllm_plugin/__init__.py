"""The bands inside vLLM's own batch: a scheduler class for ``vllm serve --scheduler-cls`` (SPEC §2, §7).

A gateway decides what enters the engine; inside, every step decides again. ``TidegateScheduler`` makes those decisions
follow the bands that the gateway tells by ``priority``. It runs in vLLM's process and needs nothing but vLLM and the
standard library, so that it can be installed there without the gateway's own dependencies.

``decide`` and ``settings`` are pure; everything that is bound to a version of vLLM is in ``engine``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.vllm_plugin.engine import TidegateScheduler

__all__ = ["TidegateScheduler"]


def __getattr__(name: str) -> object:
    """Import vLLM when its class is asked for and not before, so that the rest can be used without it."""
    if name != "TidegateScheduler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import vllm  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "vllm":
            raise
        raise ImportError(
            "tidegate.vllm_plugin runs inside vLLM, which is not installed in this environment; install tidegate "
            "next to vLLM with: pip install --no-deps tidegate"
        ) from error
    from tidegate.vllm_plugin.engine import TidegateScheduler

    return TidegateScheduler
