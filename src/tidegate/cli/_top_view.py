"""How ``tidegate top`` looks: one screen from one set of the dashboard's numbers. Names are text, never markup."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

Numbers = dict[str, Any]

VERDICTS = {"safe": "bold green", "idle": "bold", "strained": "bold yellow", "unsafe": "bold white on red"}
LISTED = 5
MOST_REPLICAS = 16
WIDE = 110
"""Columns from which nothing is left out of backends and refusals."""
ROOM_FOR_LISTS = 30
"""Lines that a terminal needs before tenants and refusals are shown too."""


def screen(numbers: Numbers, *, width: int, height: int | None, before: Text | None = None) -> RenderableType:
    """Lay the numbers out.

    Args:
        numbers: the dashboard's.
        width: columns of the terminal; a narrow one gets fewer numbers, never broken ones.
        height: its lines; ``None``: there is room for everything.
        before: what stands above it all.
    """
    parts: list[RenderableType] = [] if before is None else [before]
    parts.append(_banner(numbers))
    if numbers.get("fault"):
        return Group(*parts, Text(str(numbers["fault"]), style="bold white on red"))
    parts += [_first_look(numbers), _bands(numbers, width), _backends(numbers, width)]
    parts += [part for part in (_replicas(numbers), _differing(numbers)) if part is not None]
    if height is None or height >= ROOM_FOR_LISTS + len(numbers["bands"]) + len(numbers["backends"]):
        parts += [
            table for table in (_tenants(numbers), _refusals(numbers, width), _jobs(numbers)) if table is not None
        ]
    return Group(*parts)


def _banner(numbers: Numbers) -> Text:
    mode = numbers["mode"]
    text = Text(f"mode {mode['name']}", style="" if mode["name"] == "normal" else "bold black on yellow")
    if mode["by"] != "start":
        text.append(f" by {mode['by']}")
    if mode["reverts_to"] is not None:
        text.append(f", back to {mode['reverts_to']} in {duration(mode['reverts_in_s'])}")
    return text


def _first_look(numbers: Numbers) -> Text:
    state = numbers["verdict"]["state"]
    highest = numbers["bands"][0]["name"]
    text = Text.assemble((f"{highest} {state}", VERDICTS.get(state, "bold")))
    why = ", ".join(finding["code"].replace("_", " ") for finding in numbers["verdict"]["findings"])
    text.append(f" ({why})" if why else "")
    text.append(f"   waiting {numbers['queued']:,}   running {numbers['running']:,} of {numbers['seats']:,} seats")
    if numbers["waste"]["tokens"]:
        causes = ", ".join(f"{cause} {tokens:,}" for cause, tokens in numbers["waste"]["causes"].items())
        text.append(f"   thrown away {numbers['waste']['part']:.2%} ({causes})")
    for name in ("draining", "storm"):
        if numbers[name]:
            text.append(f"   {name}", style="bold yellow")
    if numbers["not_ready"]:
        text.append(f"   not ready: {numbers['not_ready']}", style="bold red")
    return text


def _bands(numbers: Numbers, width: int) -> Table:
    columns = [column for column in BAND_COLUMNS if column.from_width <= width]
    table = _table(f"bands (last {numbers['window_s']:g} s)", *(column.title for column in columns))
    for band in numbers["bands"]:
        table.add_row(*(column.cell(band) for column in columns))
    return table


def _backends(numbers: Numbers, width: int) -> Table:
    heads = ("backend", "model", "state", "seats", "running", "kv free", "budget", "engine queue")
    shown = heads if width >= WIDE else heads[:6]
    table = _table("backends", *shown)
    for row in numbers["backends"]:
        state = Text("up") if row["up"] else Text("down", style="bold white on red")
        if row["paused_s"] is not None:
            state.append(f", paused {duration(row['paused_s'])}", style="yellow")
        if row["stale"]:
            state.append(", readings too old" if width >= WIDE else ", stale", style="yellow")
        cells = (
            _name(row["name"], "bold"),
            _name(row["pool"]),
            state,
            f"{row['seats']:,}",
            f"{row['running']:,}",
            part(row["kv_free"]),
            part(row["budget"]),
            whole(row.get("engine_waiting")),
        )
        table.add_row(*cells[: len(shown)])
    return table


def _replicas(numbers: Numbers) -> Table | None:
    replicas = numbers.get("replicas")
    if not replicas or (replicas["number"] < 2 and not replicas["degraded"] and not replicas["differs"]):
        return None
    trouble = " (the shared store does not answer; each goes on alone)" if replicas["degraded"] else ""
    names = [band["name"] for band in numbers["bands"]]
    heads = ("gateway", "state", "seats", *(f"{name} waiting" for name in names))
    table = _table(f"gateways that share the seats{trouble}", *heads)
    for row in replicas["rows"][:MOST_REPLICAS]:
        state = (
            Text("up") if not row["lost"] else Text(f"lost {duration(row['seen_s'])} ago", style="bold white on red")
        )
        if row["same_name"]:
            state.append(", another has this name", style="bold white on red")
        if row["differs"]:
            state.append(", other backends", style="bold yellow")
        name = f"{row['name']} (this one)" if row["own"] else row["name"]
        table.add_row(
            _name(name, "bold"), state, f"{row['seats']:,}", *(f"{depth:,}" for depth in row["waiting"][: len(names)])
        )
    return table


def _differing(numbers: Numbers) -> Text | None:
    """Say how this gateway's file differs from the one whose backends are dealt."""
    pools = (numbers.get("replicas") or {}).get("differs", ())
    words = {"not_dealt": "not dealt", "unknown": "not in its file", "seats": "other seats"}
    lines = [
        f"{each['pool']}: " + ", ".join(f"{' '.join(each[key])} {word}" for key, word in words.items() if each[key])
        for each in pools
    ]
    return _name(f"this one's file has other backends: {'; '.join(lines)}", "bold yellow") if lines else None


def _tenants(numbers: Numbers) -> Table | None:
    tokens, refused = numbers["tenants"]["tokens"][:LISTED], numbers["tenants"]["refused"][:LISTED]
    if not tokens and not refused:
        return None
    table = _table("tenants (last minute)", "most tokens", "tokens", "most refused", "refusals")
    for index in range(max(len(tokens), len(refused))):
        table.add_row(*_pair(tokens, index), *_pair(refused, index))
    return table


def _pair(rows: list[Any], index: int) -> tuple[Text, str]:
    return (_name(rows[index][0]), f"{rows[index][1]:,}") if index < len(rows) else (Text(""), "")


def _refusals(numbers: Numbers, width: int) -> Table | None:
    if not numbers["refusals"]:
        return None
    heads = ("ago", "band", "tenant", "reason", "status", "retry after", "model", "request")
    shown = heads if width >= WIDE else heads[:6]
    table = _table("last refusals", *shown)
    for row in numbers["refusals"][:LISTED]:
        names = (row["band"], row["tenant"], row["reason"])
        retry = "" if row["retry_after_s"] is None else f"{row['retry_after_s']} s"
        cells: tuple[str | Text, ...] = (
            duration(row["age_s"]),
            *map(_name, names),
            str(row["status"]),
            retry,
            _name(row["model"]),
            _name(row["id"]),
        )
        table.add_row(*cells[: len(shown)])
    return table


def _jobs(numbers: Numbers) -> Table | None:
    jobs = numbers.get("jobs")
    if not jobs or not (jobs.get("batches") or jobs.get("dead") or "error" in jobs):
        return None
    if "error" in jobs:
        table = _table("batches", "error")
        table.add_row(_name(jobs["error"], "red"))
        return table
    table = _table(f"batches (dead letters: {jobs.get('dead', 0):,})", "batch", "state", "done", "of", "failed")
    for row in jobs.get("batches", ())[:LISTED]:
        done = row.get("completed", 0) + row.get("failed", 0)
        cells = (f"{done:,}", f"{row.get('total', 0):,}", f"{row.get('failed', 0):,}")
        table.add_row(_name(row.get("id", "")), _name(row.get("state", "")), *cells)
    return table


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", overflow="fold")
    return table


def _name(value: object, style: str = "") -> Text:
    """Return a name of somebody else's choosing; what would move a terminal's cursor is not in it."""
    return Text("".join(sign if sign.isprintable() else "�" for sign in str(value)), style=style)


def _known(say: Callable[[float], str]) -> Callable[[float | None], str]:
    return lambda value: "–" if value is None else say(value)


def _duration(seconds: float) -> str:
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


duration = _known(_duration)
part = _known(lambda value: f"{value:.0%}")
rate = _known(lambda value: f"{value:,.1f}" if value < 100 else f"{value:,.0f}")
whole = _known(lambda value: f"{value:,.0f}")


@dataclass(slots=True, frozen=True)
class _Column:
    """A column of the bands' table; ``from_width``: columns that a terminal needs to show it."""

    title: str
    cell: Callable[[Numbers], str | Text]
    from_width: int = 0


def _refused(band: Numbers) -> Text:
    return Text(rate(band["refused_per_s"]), style="red" if band["refused_per_s"] else "")


def _share(band: Numbers) -> str:
    return f"{part(band['share'])} ({band['share_kind']} {part(band['share_wanted'])})"


BAND_COLUMNS = (
    _Column("band", lambda band: Text(band["name"], style="bold")),
    _Column("waiting", lambda band: f"{band['depth']:,}"),
    _Column("running", lambda band: f"{band['running']:,}"),
    _Column("oldest", lambda band: duration(band["oldest_s"])),
    _Column("bound", lambda band: duration(band["bound_s"]), 110),
    _Column("wait p50", lambda band: duration(band["wait_p50_s"]), 150),
    _Column("wait p99", lambda band: duration(band["wait_p99_s"]), 80),
    _Column("ttft p50", lambda band: duration(band["ttft_p50_s"]), 150),
    _Column("ttft p99", lambda band: duration(band["ttft_p99_s"])),
    _Column("in target", lambda band: part(band["within"]), 110),
    _Column("disp/s", lambda band: rate(band["dispatched_per_s"]), 130),
    _Column("tok/s", lambda band: rate(band["written_per_s"]), 130),
    _Column("refused/s", _refused),
    _Column("share", _share, 150),
    _Column("stopped by", lambda band: Text(", ".join(dict.fromkeys(gate["kind"] for gate in band["gates"]))), 80),
)
