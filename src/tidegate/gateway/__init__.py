"""The byte path: OpenAI-compatible HTTP in, stream out."""

from tidegate.gateway.app import Gateway
from tidegate.gateway.completions import Completions
from tidegate.gateway.crowd import Crowd
from tidegate.gateway.limits import Limits
from tidegate.gateway.models import Models
from tidegate.gateway.pools import Pools
from tidegate.gateway.refusing import Refuser
from tidegate.gateway.requests import Ends, Requests
from tidegate.gateway.resuming import Resumer
from tidegate.gateway.rows import Rows
from tidegate.gateway.server import ClientServer

__all__ = [
    "ClientServer",
    "Completions",
    "Crowd",
    "Ends",
    "Gateway",
    "Limits",
    "Models",
    "Pools",
    "Refuser",
    "Requests",
    "Resumer",
    "Rows",
]
