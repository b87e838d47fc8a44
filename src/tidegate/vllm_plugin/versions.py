"""The versions of vLLM for which the scheduler class was written and with which it is tested."""

from __future__ import annotations

from collections.abc import Sequence

SUPPORTED = ("0.32",)
"""Major and minor numbers."""


def refusal(version: str, missing: Sequence[str], *, anyhow: bool, how: str) -> str | None:
    """Say why the class does not start with a vLLM; ``None``: it does.

    Args:
        version: of vLLM.
        missing: parts of it that are used and not there.
        anyhow: a version that is not listed may be tried.
        how: the setting that allows it.
    """
    known = " or ".join(f"{each}.x" for each in SUPPORTED)
    if missing:
        return (
            f"tidegate.vllm_plugin supports vLLM {known}; this is {version}, in which parts that it uses are "
            f"different: {'; '.join(missing)}. Start vLLM without --scheduler-cls, or with a supported version."
        )
    if ".".join(version.split(".")[:2]) in SUPPORTED or anyhow:
        return None
    return (
        f"tidegate.vllm_plugin supports vLLM {known}; this is {version}. Start vLLM without --scheduler-cls, or with "
        f"a supported version, or try this one with {how}: true in --additional-config."
    )
