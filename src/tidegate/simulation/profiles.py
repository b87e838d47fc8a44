"""What one step of a continuous-batching engine costs, for several accelerators.

Step time in milliseconds: ``t = O + (W^p + (C n)^p)^(1/p) + A(n) + B s + K S + Q X`` with ``n`` tokens computed in the
step, ``s`` sequences that get a token in it, ``S`` KV tokens read by the decoding sequences and ``X`` the sum over
prefill chunks of chunk x (context before + chunk / 2). ``W`` is the time to stream the weights, ``C`` the compute per
token, ``p`` how sharply one hands over to the other; ``A`` is the all-reduce of tensor parallelism, ``B`` what each
answer costs beside the model, which counts where both share a CPU.

Sources: W, C and p are fits to the kernel times that microsoft/vidur measured on A100 and H100 (mean error 3 to 6 %);
the 8B row on H100 is rescaled by layer weights and one measured decode. K is KV bytes per token over 0.8 of the memory
bandwidth, Q is 4 L d per GPU over 45 to 50 % of peak FLOP/s.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Profile:
    """The step cost of one replica. All times are milliseconds.

    Attributes:
        name: how the command line calls it.
        overhead: O, scheduling and launch per step.
        weights: W, streaming the weights once.
        per_token: C, compute per token of the batch.
        sharpness: p of the norm that joins the two.
        per_kv_token: K, per KV token read.
        per_pair: Q, per query-key pair of a prefill chunk.
        kv_tokens: size of the KV pool in tokens.
        reduce_base: constant part of the all-reduce.
        reduce_per_token: all-reduce per token of the batch.
        max_sequences: most running sequences where the user does not say.
        per_sequence: B, per sequence that gets a token.
    """

    name: str
    overhead: float
    weights: float
    per_token: float
    sharpness: float
    per_kv_token: float
    per_pair: float
    kv_tokens: int
    reduce_base: float = 0.0
    reduce_per_token: float = 0.0
    max_sequences: int = 256
    per_sequence: float = 0.0

    def step_s(self, tokens: int, kv_read: int, pairs: float, sequences: int = 0) -> float:
        """Seconds that a step takes, without noise (``n``, ``S``, ``X`` and ``s`` of the module's formula)."""
        p = self.sharpness
        matrix: float = (self.weights**p + (self.per_token * tokens) ** p) ** (1 / p)
        reduce = self.reduce_base + self.reduce_per_token * tokens
        rest = self.overhead + matrix + reduce + self.per_kv_token * kv_read + self.per_pair * pairs
        return (rest + self.per_sequence * sequences) / 1000

    def least_s(self, prompt: int, output: int, *, cached: int = 0) -> float:
        """Least engine time, in seconds, that a request can cost in any batch: the basis of capacity bounds."""
        new = prompt - cached
        compute = self.per_token * (new + output) + self.per_sequence * output
        attention = self.per_kv_token * (output * prompt + output * output / 2)
        return (compute + attention + self.per_pair * new * (cached + new / 2)) / 1000


def _profiles() -> dict[str, Profile]:
    rows = (
        Profile("h100-8b", 0.8, 5.7, 0.0218, 1.29, 4.9e-5, 1.18e-6, 410_000),
        Profile("a100-8b", 0.8, 9.74, 0.0696, 1.54, 8.0e-5, 3.4e-6, 410_000),
        Profile("a100-70b-tp4", 2, 24.4, 0.166, 1.49, 5.0e-5, 4.2e-6, 420_000, 2.6, 0.026),
        Profile("h100-70b-tp4", 2, 13.6, 0.0545, 1.32, 3.1e-5, 1.5e-6, 420_000, 2.4, 0.010),
        Profile("h100-70b-tp8", 2, 8.0, 0.0289, 1.10, 1.5e-5, 0.74e-6, 1_200_000, 3.0, 0.014),
        # vLLM 0.32 with one thread of a two-core AMD EPYC, six slots, 1 GB of cache and the small model of the tests
        # (12 layers of 512): `python -m benchmarks.fit_profile`, which holds it against a mix it was not fitted to.
        Profile("cpu", 0.0, 19.0, 0.146, 1.0, 5.8e-3, 3.1e-4, 40_000, max_sequences=6, per_sequence=0.44),
        # Made up, for demonstrations on small machines: a short pool, and few enough tokens per second (2,600 written
        # at the very most) that the processes which carry them need a fraction of a core.
        Profile("slow", 1.0, 20.0, 0.075, 1.5, 1.0e-4, 4.0e-6, 120_000, max_sequences=64),
    )
    return {row.name: row for row in rows}


PROFILES = _profiles()
"""Profiles by name; the first is the default."""

DEFAULT_PROFILE = "h100-8b"


def profile_named(name: str) -> Profile:
    """Return the profile called ``name``; ``ValueError`` lists the known ones."""
    try:
        return PROFILES[name]
    except KeyError:
        raise ValueError(f"profile: expected one of {', '.join(PROFILES)}, got {name!r}") from None
