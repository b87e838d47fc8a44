"""Draw the result of the demo as an SVG: ``python docs/images/draw_demo.py demo.json > docs/images/demo.svg``.

``demo.json`` is what ``tidegate demo --json`` prints.

Bars are the 99th percentile of the time to the first token on a logarithmic axis; an arrow at the end of a bar marks
a lower bound (the request was still waiting when the run ended).
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

LEFT, WIDTH, ROW = 210, 560, 34
LOW, HIGH = 0.1, 100.0
COLOURS = {"FIFO": "#a3b1c6", "tidegate": "#2aa198"}
TARGETS = {"p0": 1.0, "p1": 10.0}
NAMES = {"p0": "p0 checkout", "p1": "p1 storefront", "p2": "p2 summaries"}


def main() -> None:
    """Read the JSON file named on the command line and write the drawing to standard output."""
    result = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.stdout.write(draw(result))


def draw(result: dict[str, Any]) -> str:
    """Return the SVG of one demo result."""
    body = [_axis()]
    y = 76
    for index, (before, after) in enumerate(zip(result["fifo"]["bands"], result["tidegate"]["bands"], strict=True)):
        body.append(_target(before["band"], y))
        body.append(f'<text x="20" y="{y + 38}" font-weight="600">{NAMES[before["band"]]}</text>')
        for name, band in (("FIFO", before), ("tidegate", after)):
            body.append(_bar(name, band, y))
            y += ROW
        y += 22 if index < 2 else 0
    height = y + 60
    load = result["fifo"]["offered"]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 920 {height}" role="img" aria-labelledby="t" '
        'font-family="system-ui, -apple-system, \'Segoe UI\', sans-serif" font-size="14" fill="#0f172a">\n'
        f'<title id="t">Time to first token under {load:.1f} times the load that the engine can do</title>\n'
        f'<rect width="920" height="{height}" rx="12" fill="#f8fafc"/>\n'
        f'<text x="20" y="32" font-size="16" font-weight="600">Time to first token, 99th percentile, at {load:.1f} '
        "times what the engine can do</text>\n"
    )
    foot = (
        f'<text x="20" y="{height - 20}" font-size="12" fill="#475569">Same requests, same engine, same seats. Dashed: '
        "the band&#8217;s target. An arrow: at least, still waiting at the end.</text>\n</svg>\n"
    )
    return head + "\n".join(body) + "\n" + foot


def _x(seconds: float) -> float:
    part = math.log(min(max(seconds, LOW), HIGH) / LOW) / math.log(HIGH / LOW)
    return round(LEFT + part * WIDTH, 1)


def _axis() -> str:
    ticks = ((0.1, "0.1 s"), (1.0, "1 s"), (10.0, "10 s"), (100.0, "100 s"))
    return "\n".join(
        f'<text x="{_x(at)}" y="58" font-size="12" fill="#475569" text-anchor="middle">{label}</text>'
        for at, label in ticks
    )


def _target(band: str, y: int) -> str:
    if band not in TARGETS:
        return ""
    x = _x(TARGETS[band])
    return (
        f'<line x1="{x}" y1="{y - 4}" x2="{x}" y2="{y + 2 * ROW - 4}" stroke="#dc2626" stroke-width="1.5" '
        'stroke-dasharray="4 4"/>'
    )


def _bar(name: str, band: dict[str, Any], y: int) -> str:
    quantile = band["ttft_p99"]
    if quantile is None:
        return f'<text x="{LEFT}" y="{y + 18}" font-size="12">{name}: none</text>'
    end = _x(quantile["seconds"])
    arrow = ""
    if quantile["at_least"]:
        arrow = f'<path d="M{end} {y} l12 13 l-12 13 z" fill="{COLOURS[name]}"/>'
    seconds = quantile["seconds"]
    number = f"{seconds:.2f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    label = f"{'≥ ' if quantile['at_least'] else ''}{number} {name}"
    return (
        f'<rect x="{LEFT}" y="{y}" width="{max(end - LEFT, 2):.1f}" height="26" rx="3" fill="{COLOURS[name]}"/>{arrow}'
        f'<text x="{end + 20}" y="{y + 18}" font-size="13" paint-order="stroke" stroke="#f8fafc" stroke-width="5">'
        f"{label}</text>"
    )


if __name__ == "__main__":
    main()
