"""What became of each request of a run, as its client saw it.

Every time counts from the moment the timetable wanted the request sent, not from the moment it was: a client that is
late, or a server that makes it late, cannot hide a wait that way.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.cli.demo._plan import BANDS, Question


@dataclass(slots=True)
class Record:
    """One request. Times in seconds after its due moment; ``None``: not yet.

    Attributes:
        question: its row of the timetable.
        sent_s: when the client really sent it.
        queue_s: queue wait as the gateway tells it in ``x-tidegate-queue-ms``.
        first_s: when the first piece of answer text came.
        done_s: when the answer was complete.
        refused: reason of a refusal, or of a failure; ``None`` when there was none.
        pieces: pieces of answer text received, one token each.
    """

    question: Question
    sent_s: float | None = None
    queue_s: float | None = None
    first_s: float | None = None
    done_s: float | None = None
    refused: str | None = None
    pieces: int = 0


class Tally:
    """The records of one run, with the counts that the live screen shows kept up to date by ``counts``."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def open(self, question: Question) -> Record:
        """Add the record of a request that is due now."""
        record = Record(question)
        self.records.append(record)
        return record

    def counts(self) -> list[dict[str, int]]:
        """Per band: sent, waiting (no text yet), answering, answered, refused."""
        rows = [{"sent": 0, "waiting": 0, "answering": 0, "answered": 0, "refused": 0} for _ in BANDS]
        for record in self.records:
            row = rows[record.question.band]
            row["sent"] += 1
            row[_state(record)] += 1
        return rows


def _state(record: Record) -> str:
    if record.refused is not None:
        return "refused"
    if record.done_s is not None:
        return "answered"
    return "waiting" if record.first_s is None else "answering"
