"""Virtual time: the engine model, arrivals, traces and the world that joins them with the scheduler."""

from tidegate.simulation.arrivals import Request, fixed, gamma, merged, poisson, replayed, requests, stream_random
from tidegate.simulation.baselines import FifoGate, Ungated
from tidegate.simulation.engine_model import EngineModel
from tidegate.simulation.kv import BLOCK, KvPool
from tidegate.simulation.log import Entry, Fleeting, Log
from tidegate.simulation.profiles import DEFAULT_PROFILE, PROFILES, Profile, profile_named
from tidegate.simulation.records import Record, Sink
from tidegate.simulation.scraping import Scrape
from tidegate.simulation.sequences import (
    EngineCounters,
    EngineSequence,
    EngineSignals,
    Stage,
    StepResult,
    WaitingOrder,
    Work,
)
from tidegate.simulation.servers import EngineServer, FixedServer, Server
from tidegate.simulation.traces import TraceError, TraceRow, read_trace
from tidegate.simulation.world import World, known_lengths

__all__ = [
    "BLOCK",
    "DEFAULT_PROFILE",
    "PROFILES",
    "EngineCounters",
    "EngineModel",
    "EngineSequence",
    "EngineServer",
    "EngineSignals",
    "Entry",
    "FifoGate",
    "FixedServer",
    "Fleeting",
    "KvPool",
    "Log",
    "Profile",
    "Record",
    "Request",
    "Scrape",
    "Server",
    "Sink",
    "Stage",
    "StepResult",
    "TraceError",
    "TraceRow",
    "Ungated",
    "WaitingOrder",
    "Work",
    "World",
    "fixed",
    "gamma",
    "known_lengths",
    "merged",
    "poisson",
    "profile_named",
    "read_trace",
    "replayed",
    "requests",
    "stream_random",
]
