"""An open-loop load generator: requests leave when the timetable says, however slow the answers are.

A closed loop would send less to a slow server and so hide its queue (coordinated omission).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tidegate.cli.demo._client import Exchange, chat_request
from tidegate.cli.demo._plan import Question, prompt_text
from tidegate.cli.demo._record import Tally


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
    loop = asyncio.get_running_loop()
    start = loop.time()
    open_: set[asyncio.Task[None]] = set()
    try:
        for question, request in prepared:
            await asyncio.sleep(start + question.at_s - loop.time())
            task = asyncio.create_task(_ask(question, request, port, tally, start=start))
            open_.add(task)
            task.add_done_callback(open_.discard)
        await asyncio.sleep(start + seconds - loop.time())
    finally:
        pending = list(open_)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


def _encode(question: Question, target: Target, seed: int) -> bytes:
    return chat_request(
        f"127.0.0.1:{target.port}",
        key=target.keys[question.band],
        prompt=prompt_text(question, seed=seed),
        output_tokens=question.output_tokens,
    )


async def _ask(question: Question, request: bytes, port: int, tally: Tally, *, start: float) -> None:
    loop = asyncio.get_running_loop()
    record = tally.open(question)
    due = start + question.at_s
    try:
        _, exchange = await loop.create_connection(
            lambda: Exchange(request, record, lambda: loop.time() - due), "127.0.0.1", port
        )
    except OSError:
        record.refused = "no_connection"
        return
    try:
        await exchange.done.wait()
    finally:
        exchange.leave()
