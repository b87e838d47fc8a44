"""The order of grants of a real pool on Valkey, as the store made them.

The gateways' function is loaded beforehand under its own name with one line more, which writes each grant down in the
very call that makes it. So nothing of the order is a guess from outside, and gateways notice nothing. A store that is
wiped gets the plain function from the gateways: a journal is for runs without that.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from tidegate.testing.valkey import ValkeyProcess

_JOURNAL = "test:grants"
_BEFORE = "  commit(x, band, kind, claim, gated, held)\n"
_NOTE = """
  local able, at = {}, call('TIME')
  for b = 1, x.bands do able[b] = (claim[b] and not gated[b] and not held[b]) and 1 or 0 end
  call('RPUSH', '@JOURNAL@', cjson.encode({at[1], at[2], name, band - 1, kind, able}))
"""


class Noted(NamedTuple):
    """One grant.

    Attributes:
        at: when, by the monotonic clock of this machine.
        replica: to whom.
        band: of which band.
        kind: turn, floor or overtake.
        able: for each band, whether work of it waited that could have had the seat.
    """

    at: float
    replica: str
    band: int
    kind: str
    able: tuple[bool, ...]

    @property
    def passes(self) -> bool:
        """Whether higher work waited that could have had the seat."""
        return any(self.able[: self.band])


class GrantJournal:
    """Of all pools on one server. Make it before gateways come."""

    def __init__(self, store: ValkeyProcess) -> None:
        from valkey import Valkey  # an extra, and this module has tests that need none

        from tidegate.stores.ledger_valkey import library

        _, text = library()
        if text.count(_BEFORE) != 1:
            raise RuntimeError(f"expected one place in the ledger's function that reads {_BEFORE!r}")
        self._client = cast("Any", Valkey(port=store.port))  # the library is typed in part
        note = _BEFORE + _NOTE.replace("@JOURNAL@", _JOURNAL)
        self._client.execute_command("FUNCTION", "LOAD", "REPLACE", text.replace(_BEFORE, note))

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    def grants(self, since: float = float("-inf"), until: float = float("inf")) -> list[Noted]:
        """Return those of a time, in order."""
        wall_s = time.time() - time.monotonic()
        found = []
        for line in self._client.lrange(_JOURNAL, 0, -1):
            seconds, micros, replica, band, kind, able = json.loads(line)
            at = int(seconds) + int(micros) / 1e6 - wall_s
            if since <= at < until:
                found.append(Noted(at, replica, band, kind, tuple(map(bool, able))))
        return found


def least_of(grants: Sequence[Noted], band: int, window: int = 100) -> tuple[int, int]:
    """Return how few of a band there are in any window in which it always waited, and how many such windows."""
    windows = [grants[at : at + window] for at in range(len(grants) - window + 1)]
    found = [sum(each.band == band for each in part) for part in windows if all(each.able[band] for each in part)]
    return min(found, default=window), len(found)


def most_passing(grants: Sequence[Noted], window: int = 100) -> int:
    """Return how many grants pass higher work that could have had the seat, in the window that has most."""
    passes = [each.passes for each in grants]
    return max(sum(passes[at : at + window]) for at in range(max(1, len(passes) - window + 1)))
