"""Prompts of a given length: texts that mean nothing, of words that are one token each for the simulated engine."""

from __future__ import annotations

import random
from collections.abc import Sequence


def prompt_text(tokens: int, *, seed: str, chain: Sequence[object] = (), unit_tokens: int = 512) -> str:
    """Numbers of three digits; two prompts agree exactly as far as their chains of shared units do.

    Args:
        tokens: how many words.
        seed: of what belongs to this prompt alone.
        chain: keys of its units from the start.
        unit_tokens: words of a unit.
    """
    shared = [_words(f"unit {key}", unit_tokens) for key in chain[: tokens // unit_tokens]]
    return "".join([*shared, _words(seed, tokens - len(shared) * unit_tokens)])


def _words(seed: str, count: int) -> str:
    chance = random.Random(seed)
    return "".join(f" {chance.randrange(1000):03d}" for _ in range(count))
