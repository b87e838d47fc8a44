"""Everything that can be set on the simulated engine."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tidegate.simserver.faults import Fault
from tidegate.simulation import DEFAULT_PROFILE, WaitingOrder


@dataclass(slots=True, frozen=True)
class EngineOptions:
    """Options of one simulated engine.

    Attributes:
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
        model: the model name that it answers to.
        profile: cost profile.
        speed: how many times faster than the profile it runs.
        seed: of texts, noise and faults.
        kv_tokens: size of the KV pool; ``None``: the profile's.
        max_sequences: most running sequences; ``None``: the profile's.
        token_budget: most tokens in a step.
        order: order of the waiting list.
        noise: standard deviation of a step's time as a part of it.
        mean_output_tokens: mean length of an answer whose request does not say.
        max_model_len: longest prompt plus answer, tokens.
        fault: what goes wrong from the start.
    """

    host: str = "127.0.0.1"
    port: int = 0
    model: str = "sim"
    profile: str = DEFAULT_PROFILE
    speed: float = 1.0
    seed: int = 0
    kv_tokens: int | None = None
    max_sequences: int | None = None
    token_budget: int = 2048
    order: WaitingOrder = WaitingOrder.FCFS
    noise: float = 0.08
    mean_output_tokens: float = 200.0
    max_model_len: int = 32_768
    fault: Fault = field(default_factory=Fault)

    def __post_init__(self) -> None:
        for name, value, low in (
            ("speed", self.speed, 0),
            ("mean_output_tokens", self.mean_output_tokens, 0),
            ("max_model_len", self.max_model_len, 1),
        ):
            if not low < value < math.inf:
                raise ValueError(f"{name}: expected more than {low}, got {value}")
        if not 0 <= self.noise < 1:
            raise ValueError(f"noise: expected a part from 0 to below 1, got {self.noise}")
