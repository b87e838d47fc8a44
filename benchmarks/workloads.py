"""The research workloads that the goals are measured on, as scenarios of one default engine.

Public traces laid over three bands and scaled in *engine time*: a share of 0.4 asks for 0.4 s of least engine time a
second (``Profile.least_s``), so 1.0 is more than any real batch can do. p0 asks for 0.4, p2 for 0.5, p1 for the rest of
the load. Traces keep the order and spacing of their requests; only the speed is set. Summaries have no times of their
own and come as a Poisson stream, so that each has a deadline.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tidegate.config import parse_settings
from tidegate.core import Policy
from tidegate.simulation import WaitingOrder, profile_named, read_trace
from tidegate.simulation.scenario import Arrivals, EngineSpec, Kind, Scenario, Slo, Source

TRACES = Path(os.environ.get("TIDEGATE_TRACES", Path(__file__).resolve().parents[2] / "shared" / "traces"))
"""Folder of the traces, which do not ship."""

CONV, CODE = "azure2023_conv", "azure2023_code"
M_LARGE, REASONING = "servegen_m_large_52clients_60min", "servegen_deepseek_r1_30min"
ARXIV = "arxiv_summarization_lengths"
MOONCAKE, SYNTHETIC = "mooncake_conversation", "mooncake_synthetic"

BACKEND, PROFILE = "b", "h100-8b"

SLOS = (
    Slo(ttft_s=1.0, end_s=2.0, per_token_s=0.05, value=8),
    Slo(ttft_s=10.0, end_s=20.0, per_token_s=0.1, value=2),
    Slo(ttft_s=120.0, end_s=300.0, per_token_s=0.2, value=1),
)
"""What the goal ``value`` counts as in time, by band."""

P0_SHARE, P2_SHARE = 0.4, 0.5
DRAIN_S = 60.0
"""How long what is open may go on; the bound is cut there too, so that no run gains by an idle end."""


@dataclass(slots=True, frozen=True)
class Part:
    """One band's load: the copies of a trace, each shifted by that many seconds."""

    trace: str
    shifts: tuple[float, ...] = (0.0,)


WORKLOADS: dict[str, tuple[Part, Part, Part]] = {
    "rush": (Part(CONV), Part(M_LARGE, (0.0, 1800.0)), Part(ARXIV)),
    "burst": (Part(CODE), Part(CONV), Part(ARXIV)),
    "memory": (Part(CONV), Part(REASONING), Part(MOONCAKE)),
    "agents": (Part(CONV), Part(MOONCAKE), Part(SYNTHETIC)),
}
"""Bands p0, p1, p2 of each. (``tenants``, the arena, is one band of 27 tenants: see ``tests/theory/test_arena.py``.)"""


def policy(settings: str, *, seats: int) -> Policy:
    """Compile the text of a settings file without its ``models``, for one backend with ``seats``."""
    backend = f"{{name: {BACKEND}, url: 'http://engine', engine: tidegate, seats: {seats}}}"
    return parse_settings(f"{settings}\nmodels: [{{name: m, backends: [{backend}]}}]\n").core_policy()


def workload(
    name: str,
    rule: Policy,
    *,
    load: float = 2.5,
    minutes: float = 30.0,
    bands: tuple[int, ...] = (0, 1, 2),
    engine: EngineSpec | None = None,
) -> Scenario:
    """Return a workload at a load, or only some of its bands.

    Raises:
        OSError: a trace is not there.
    """
    shares = (P0_SHARE, load - P0_SHARE - P2_SHARE, P2_SHARE)
    sources = [
        source
        for band, (part, share) in enumerate(zip(WORKLOADS[name], shares, strict=True))
        if band in bands
        for source in _sources(band, part, share)
    ]
    return Scenario(
        f"{name} at {load:g} times",
        rule,
        (engine or EngineSpec(BACKEND, PROFILE),),
        tuple(sources),
        minutes * 60.0,
        drain_s=DRAIN_S,
        seed=1,
        slos=SLOS,
    )


def _sources(band: int, part: Part, share: float) -> list[Source]:
    path = TRACES / f"{part.trace}.csv.gz"
    work_s, rate = _work(path)
    each = share / len(part.shifts)
    if not rate:
        return [Source(f"p{band}", Arrivals(Kind.POISSON, rate=each / work_s), trace=path, band=band)]
    return [
        Source(
            f"p{band}" + "'" * number,
            Arrivals(Kind.TRACE, speed=each / (work_s * rate)),
            trace=path,
            band=band,
            shift_s=shift,
            repeat=True,
        )
        for number, shift in enumerate(part.shifts)
    ]


@cache
def _work(path: Path) -> tuple[float, float]:
    """Mean least engine time of a row in seconds, and rows per second (0 without times)."""
    profile = profile_named(PROFILE)
    rows = list(read_trace(path))
    work_s = sum(profile.least_s(row.prompt_tokens, row.output_tokens) for row in rows) / len(rows)
    return work_s, len(rows) / rows[-1].at if rows[-1].at else 0.0


def engine(*, token_budget: int = 2048, max_sequences: int = 256, priority: bool = False) -> EngineSpec:
    """Return the engine of a workload with its own settings, as its operator would start it."""
    order = WaitingOrder.PRIORITY if priority else WaitingOrder.FCFS
    return EngineSpec(BACKEND, PROFILE, max_sequences=max_sequences, token_budget=token_budget, order=order)
