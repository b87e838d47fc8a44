"""Draw collapsed stacks as a flame graph: the loop at the top, what it calls below, as wide as the time it took.

Names of machine code are made those of the source again, and what Python and mypyc put between two functions is left
out, so that the picture shows who calls whom in the source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape

WIDTH = 1200
ROW = 17
LEAST = 2.0
"""Of a box, in pixels: narrower ones are left out, with all below them."""
LETTER = 6.7
"""Width of a letter of 11 px, in pixels."""
COLOURS = {
    "client's side": "#7fb2e5",
    "forwarding": "#f0c36d",
    "backend's side": "#8fd19e",
    "core": "#e58f8f",
    "driver": "#e8a87c",
    "parse and check": "#b39ddb",
    "who calls": "#c5b0e6",
    "classify, the rest": "#d4c4ee",
    "estimate": "#9fa8da",
    "metrics": "#80cbc4",
    "log line": "#a5d6d0",
    "kernel": "#8d99a6",
}
REST = "#d0d4d9"

_COMPILED = re.compile(r"CPyDef_tidegate___(?P<room>\w+?)___(?P<module>\w+?)___(?P<name>\w+)")
_GENERATOR = re.compile(r"^_*(?P<method>\w+?)_(?P<owner>[A-Z]\w*?)_gen_____mypyc_generator_helper__$")
_GLUE = re.compile(
    r"CPy(Py|Iter|Dunder)_|CPyDef_\w+_gen___(send|__next__)\b|_?Py\w+ \(|"
    r"(loop_|Loop__|Handle__|UVStream__|uv__(queue|run_idle|read|stream_io)|task_step_impl)\w*"
)
"""What mypyc, CPython and uvloop put between two functions."""
_KERNEL = re.compile(r"(read|readv|write|writev|recv\w*|send\w*|epoll_\w+) \((.*/)?libc")
_LOOP = re.compile(r"^(uv_run|_run_once)\b")


class Node:
    """A function within one chain of calls: samples of it and of all that it calls."""

    __slots__ = ("below", "count", "part")

    def __init__(self, part: str) -> None:
        self.part = part
        self.count = 0
        self.below: dict[str, Node] = {}


def is_kernel(frame: str) -> bool:
    """Whether a frame is a system call for a connection."""
    return _KERNEL.match(frame) is not None


def legible_frame(frame: str) -> str | None:
    """Name a frame as the source does; ``None``: it is between two functions of anybody's source."""
    if _GLUE.match(frame):
        return None
    found = _COMPILED.match(frame)
    if found is None:
        return re.sub(r" \(.*", "", frame)
    coroutine = _GENERATOR.match(found["name"])
    if coroutine is not None:
        return f"{coroutine['owner']}.{coroutine['method']}"
    owner, cut, method = found["name"].partition("___")
    return f"{owner}.{method}" if cut else f"{found['module']}.{owner}"


def tree(stacks: Iterable[tuple[list[tuple[str, str]], int]]) -> Node:
    """Merge stacks, outermost frame first, each frame as its name and part, from the loop's turn on.

    Stacks without a turn of the loop are those of other threads, which wait.
    """
    root = Node("")
    for frames, count in stacks:
        turn = next((place for place, (name, _) in enumerate(frames) if _LOOP.match(name)), None)
        if turn is None:
            continue
        root.count += count
        node, last = root, ""
        for name, part in frames[turn + 1 :]:
            if name == last:
                continue
            node = node.below.setdefault(name, Node(part))
            node.count += count
            last = name
    return root


def drawn(root: Node, title: str, colours: Mapping[str, str] = COLOURS) -> str:
    """Return the graph as SVG, ``WIDTH`` pixels wide; the share of each box is in its tooltip."""
    boxes: list[str] = []
    deepest = 0

    def draw(node: Node, name: str, left: float, level: int) -> None:
        nonlocal deepest
        width = WIDTH * node.count / root.count
        if width < LEAST:
            return
        deepest = max(deepest, level)
        top = 30 + level * ROW
        letters = int((width - 6) / LETTER)
        shown = name if len(name) <= letters else name[: max(0, letters - 2)] + ".." if letters > 4 else ""
        boxes.append(
            f"<g><title>{escape(name)}: {node.count / root.count:.1%}</title>"
            f'<rect x="{left:.1f}" y="{top}" width="{max(0.5, width - 0.5):.1f}" height="{ROW - 1}" '
            f'fill="{colours.get(node.part, REST)}" rx="2"/>'
            + (f'<text x="{left + 3:.1f}" y="{top + 12}">{escape(shown)}</text>' if shown else "")
            + "</g>"
        )
        for below, child in sorted(node.below.items(), key=lambda each: -each[1].count):
            draw(child, below, left, level + 1)
            left += WIDTH * child.count / root.count

    if root.count:
        draw(root, "a turn of the event loop", 0.0, 0)
    height = 30 + (deepest + 1) * ROW + 30
    legend, left = [], 4.0
    for part, colour in colours.items():
        legend.append(f'<rect x="{left:.0f}" y="{height - 20}" width="10" height="10" fill="{colour}"/>')
        legend.append(f'<text x="{left + 14:.0f}" y="{height - 11}">{escape(part)}</text>')
        left += 30 + LETTER * len(part)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">\n'
        "<style>text { font: 11px monospace; fill: #1b1f24 } .title { font-size: 15px }</style>\n"
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>\n'
        f'<text class="title" x="4" y="19">{escape(title)}</text>\n' + "\n".join([*boxes, *legend]) + "\n</svg>\n"
    )
