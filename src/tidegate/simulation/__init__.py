"""Virtual time: the engine model, arrivals, traces and the world that joins them with the scheduler."""

from tidegate.simulation.engine_model import EngineModel
from tidegate.simulation.kv import BLOCK, KvPool
from tidegate.simulation.profiles import DEFAULT_PROFILE, PROFILES, Profile, profile_named
from tidegate.simulation.sequences import (
    EngineCounters,
    EngineSequence,
    EngineSignals,
    Stage,
    StepResult,
    WaitingOrder,
)

__all__ = [
    "BLOCK",
    "DEFAULT_PROFILE",
    "PROFILES",
    "EngineCounters",
    "EngineModel",
    "EngineSequence",
    "EngineSignals",
    "KvPool",
    "Profile",
    "Stage",
    "StepResult",
    "WaitingOrder",
    "profile_named",
]
