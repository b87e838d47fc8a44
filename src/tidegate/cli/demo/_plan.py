"""What the demo sends and when: the trace excerpts turned into one timetable.

Pure but for reading the two files beside ``cli/data/README.md``, which says what they are. Each band keeps the order
and the relative spacing of its own trace and is replayed at the speed that makes it ask for its part of the engine's
capacity inside the run. The arXiv file has lengths only, so its arrivals are drawn: uniform order statistics, which
is a Poisson stream given its count.
"""

from __future__ import annotations

import csv
import gzip
import random
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from itertools import cycle

from tidegate.cli.load import prompt_text as words

BANDS = ("p0", "p1", "p2")
TENANTS = ("checkout", "storefront", "analytics")
LOAD = (0.30, 0.40, 1.80)
"""Demand of each band as a multiple of the engine's capacity; together 2.5."""

SHORT_PROMPT = 400
"""Longest prompt (tokens) of an Azure request that plays a checkout question."""

PROMPT_MS = 0.073
OUTPUT_MS = 0.84
"""Engine time that a prompt token and an output token cost, in milliseconds: a least-squares fit to the steps of the
simulated engine, profile ``slow``, with 32 requests of this mix always running. A second of engine holds 1000."""

_AZURE = "azure2023_conv_10min.csv.gz"
_ARXIV = "arxiv_summarization_1in19.csv.gz"


@dataclass(slots=True, frozen=True)
class Question:
    """One request of the timetable.

    Attributes:
        number: place in the timetable, from 0.
        band: 0, 1 or 2.
        at_s: when it is due, seconds after the start of the run.
        prompt_tokens: length of its prompt.
        output_tokens: length of its answer.
    """

    number: int
    band: int
    at_s: float
    prompt_tokens: int
    output_tokens: int

    @property
    def engine_ms(self) -> float:
        """Engine time that it costs."""
        return engine_ms(self.prompt_tokens, self.output_tokens)


@dataclass(slots=True, frozen=True)
class Timetable:
    """The requests of one run in order of time, and how fast each band's trace is replayed.

    Attributes:
        questions: sorted by ``at_s``.
        speed: per band, trace seconds per second; ``None`` where the arrivals are drawn.
    """

    questions: tuple[Question, ...]
    speed: tuple[float | None, ...]


@dataclass(slots=True, frozen=True)
class _Row:
    at_s: float
    prompt: int
    output: int


def engine_ms(prompt_tokens: int, output_tokens: int) -> float:
    """Engine time, in milliseconds, of prompt and output tokens."""
    return PROMPT_MS * prompt_tokens + OUTPUT_MS * output_tokens


def timetable(seconds: float, *, seed: int) -> Timetable:
    """Lay out a run of ``seconds`` that asks for ``sum(LOAD)`` times what the engine can do in it.

    ``seed`` is that of the drawn p2 arrivals.
    """
    azure = _read(_AZURE)
    budget = [load * 1000 * seconds for load in LOAD]
    short = _take(_looped(row for row in azure if row.prompt <= SHORT_PROMPT), budget[0])
    rest = _take(_looped(row for row in azure if row.prompt > SHORT_PROMPT), budget[1])
    papers = _take(cycle(_read(_ARXIV)), budget[2])[:-1]
    rng = random.Random(seed)
    drawn = sorted(rng.random() * seconds for _ in papers)
    streams: list[list[tuple[float, _Row]]] = []
    speeds: list[float | None] = []
    for rows in (short, rest):
        speed = max(rows[-1].at_s, 1e-9) / seconds
        streams.append([(row.at_s / speed, row) for row in rows[:-1]])
        speeds.append(speed)
    streams.append(list(zip(drawn, papers, strict=True)))
    speeds.append(None)
    due = sorted(
        ((at, band, row) for band, stream in enumerate(streams) for at, row in stream), key=lambda item: item[:2]
    )
    questions = tuple(Question(n, band, at, row.prompt, row.output) for n, (at, band, row) in enumerate(due))
    return Timetable(questions, tuple(speeds))


def prompt_text(question: Question, *, seed: int) -> str:
    """Numbers of three digits, each one token of the simulated engine; different for every question."""
    return words(question.prompt_tokens, seed=f"{seed}/{question.number}")


def _read(name: str) -> list[_Row]:
    with (files("tidegate.cli") / "data" / name).open("rb") as raw, gzip.open(raw, "rt", encoding="ascii") as text:
        return [
            _Row(int(row.get("arrival_ms", 0)) / 1e3, int(row["prompt_tokens"]), int(row["output_tokens"]))
            for row in csv.DictReader(text)
        ]


def _looped(rows: Iterator[_Row]) -> Iterator[_Row]:
    """Repeat the rows for ever, each round after the last; a long run needs more than the excerpt has."""
    kept = list(rows)
    span = kept[-1].at_s + kept[-1].at_s / len(kept)
    first = kept[0].at_s
    round_ = 0
    while True:
        for row in kept:
            yield _Row(row.at_s - first + round_ * span, row.prompt, row.output)
        round_ += 1


def _take(rows: Iterator[_Row], budget: float) -> list[_Row]:
    """Take rows until their engine time passes ``budget``; the one that passes it ends the list."""
    taken = []
    spent = 0.0
    for row in rows:
        taken.append(row)
        spent += engine_ms(row.prompt, row.output)
        if spent > budget:
            break
    return taken
