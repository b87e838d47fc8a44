"""The demo's load: its timetable as requests, sent by the open-loop client."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tidegate.cli.demo._plan import Question, prompt_text
from tidegate.cli.demo._record import Tally
from tidegate.cli.load import Target as Address
from tidegate.cli.load import ask, chat_request, in_time


@dataclass(slots=True, frozen=True)
class Target:
    """Where a run sends its requests: a loopback port and the key of each band."""

    port: int
    keys: tuple[str, ...]


Prepared = list[tuple[Question, bytes]]
"""Questions in order of time, each with its whole HTTP request."""


def prepare(questions: tuple[Question, ...], target: Target, *, seed: int) -> Prepared:
    """Write all requests beforehand: half a second of work that must not fall into the run."""
    return [(question, _encode(question, target, seed)) for question in questions]


async def replay(prepared: Prepared, port: int, tally: Tally, *, seconds: float) -> None:
    """Send every question at its time, stop after ``seconds`` and abort what is still open then."""
    start = asyncio.get_running_loop().time()
    gateway = Address("127.0.0.1", port)

    async def send(item: tuple[Question, bytes]) -> None:
        question, request = item
        await ask(gateway, request, tally.open(question), due=start + question.at_s)

    due = ((item[0].at_s, item) for item in prepared)
    await in_time(due, send, start=start, until=seconds)


def _encode(question: Question, target: Target, seed: int) -> bytes:
    return chat_request(
        f"127.0.0.1:{target.port}",
        key=target.keys[question.band],
        prompt=prompt_text(question, seed=seed),
        output_tokens=question.output_tokens,
    )
