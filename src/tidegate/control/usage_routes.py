"""``/admin/usage.csv``: what each tenant used, for a spreadsheet or a bill.

A tenant's name that a spreadsheet would take for a formula is written with an apostrophe before it (CWE-1236).
"""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tidegate.control.operators import Operator
from tidegate.control.routing import VIEW, Entrance
from tidegate.control.speech import SpokenError
from tidegate.control.usage import UsageKeeper
from tidegate.core import Reason
from tidegate.stores import HOUR_S, StoreError, UsageRow

PERIODS = {"hour": HOUR_S, "day": 24 * HOUR_S, "total": None}
REASONS = tuple(reason.value for reason in Reason if reason is not Reason.CANCELLED)
COLUMNS = (
    "from_utc",
    "tenant",
    "requests",
    "completed",
    "failed",
    "rejected",
    "evicted",
    "cancelled",
    "input_tokens",
    "output_tokens",
    "dispatches",
    "wait_seconds",
    "longest_wait_seconds",
    *(f"refused_{reason}" for reason in REASONS),
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class UsageRoutes:
    """Answers it. ``routes`` are to be mounted."""

    def __init__(self, usage: UsageKeeper, utc_now: Callable[[], datetime], entrance: Entrance) -> None:
        self._usage = usage
        self._utc_now = utc_now
        self.routes: list[Route] = [entrance.route("/admin/usage.csv", {"GET": (VIEW, self._csv)})]

    async def _csv(self, request: Request, _: Operator) -> Response:
        now = self._utc_now()
        start = _time(request, "from", now.replace(day=1, hour=0, minute=0, second=0))
        end = _time(request, "to", now + timedelta(seconds=1))
        from_utc, to_utc = int(start.timestamp() // HOUR_S) * HOUR_S, -int(-end.timestamp() // HOUR_S) * HOUR_S
        if from_utc >= to_utc:
            raise SpokenError(400, "bad_request", "expected from to be before to", param="from")
        by = request.query_params.get("by", "total")
        if by not in PERIODS:
            raise SpokenError(400, "bad_request", f"expected by, one of {', '.join(PERIODS)}", param="by")
        await self._usage.write()
        pages = self._usage.rows(from_utc, to_utc, PERIODS[by])
        first: list[UsageRow] = await anext(
            pages, []
        )  # what is wrong with the store is said before the answer has begun
        name = f"usage-{start:%Y%m%d}-{end:%Y%m%d}.csv"
        headers = {"cache-control": "no-store", "content-disposition": f'attachment; filename="{name}"'}
        return Written(_lines(first, pages), headers)


class Written(Response):
    """Lines as they are read. Starlette's own answer of the kind imports 20 modules when it is first used."""

    def __init__(self, lines: AsyncIterator[str], headers: dict[str, str]) -> None:
        self._lines = lines
        self.status_code, self.media_type, self.background = 200, "text/csv", None
        self.init_headers(headers)  # without a length, which nobody knows yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send them, as long as the client is there."""
        link = scope.get("state", {}).get("link")
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for text in self._lines:
            if getattr(link, "gone", False):
                return
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _lines(first: list[UsageRow], pages: AsyncIterator[list[UsageRow]]) -> AsyncIterator[str]:
    yield _written([COLUMNS, *map(_cells, first)])
    try:
        async for page in pages:
            yield _written(map(_cells, page))
    except StoreError as error:  # the answer has begun: a line that no reader of numbers can overlook
        yield f"# incomplete: {error}\r\n"
        raise


def _written(rows: object) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)  # type: ignore[arg-type]
    return text.getvalue()


def _cells(row: UsageRow) -> tuple[object, ...]:
    used = row.usage
    ends = (used.completed, used.failed, used.rejected, used.evicted, used.cancelled)
    return (
        f"{datetime.fromtimestamp(row.start_utc, UTC):%Y-%m-%dT%H:%M:%SZ}",
        harmless(row.tenant),
        sum(ends),
        *ends,
        used.input_tokens,
        used.output_tokens,
        used.dispatched,
        f"{used.wait_s:.3f}",
        f"{used.longest_wait_s:.3f}",
        *(used.refusals.get(reason, 0) for reason in REASONS),
    )


def harmless(text: str) -> str:
    """Return a cell that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def _time(request: Request, name: str, otherwise: datetime) -> datetime:
    """Read a day (its first moment) or a time, both UTC unless they say otherwise."""
    text = request.query_params.get(name)
    if text is None:
        return otherwise
    try:
        # A plus sign in a query is a space.
        found = datetime.fromisoformat(text.strip().replace(" ", "+") if "T" in text else text)
        found = found if found.tzinfo else found.replace(tzinfo=UTC)
        if not 2000 <= found.year <= 9000:
            raise ValueError
        return found.astimezone(UTC)
    except (ValueError, OverflowError):
        expected = f"expected {name}, a day like 2026-11-01 or a time like 2026-11-01T08:00:00Z"
        raise SpokenError(400, "bad_request", expected, param=name) from None
