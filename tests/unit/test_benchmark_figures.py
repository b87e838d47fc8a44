"""What the benchmarks make of their figures: ratios kept from run to run, samples of a stack by part."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import _ratios
from benchmarks.parts import LOOP, PARTS, legible, part_of, shares, titled

ROOT = Path(__file__).resolve().parent.parent.parent


def test_a_ratio_is_told_when_it_moved_by_more_than_a_tenth() -> None:
    before = {"same": 2.0, "up": 2.0, "down": 2.0, "gone": 1.0}
    now = {"same": 2.19, "up": 2.21, "down": 1.79, "new": 9.0}
    assert _ratios.moved(now, before) == [("down", 2.0, 1.79), ("up", 2.0, 2.21)]


def test_a_record_keeps_what_was_not_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "ratios.json"
    assert _ratios.recorded(path) == {}
    _ratios.record({"a": 1.0, "b": 2.0}, path)
    _ratios.record({"b": 3.0}, path)
    assert _ratios.recorded(path) == {"a": 1.0, "b": 3.0}


def test_the_shipped_record_can_be_read() -> None:
    assert all(ratio > 0 for ratio in _ratios.recorded().values())


SERVE = "serve (/x/src/tidegate/cli/serve.py:78)"
SEND = "send (/v/lib/uvicorn/protocols/http/httptools_impl.py:4)"


@pytest.mark.parametrize(
    ("frames", "part"),
    [
        ((SERVE,), LOOP),
        ((), LOOP),
        ((SERVE, "run (/x/tidegate/gateway/app.py:9)", "x (/lib/json/encoder.py:1)"), "forwarding"),
        ((SERVE, "run (/x/tidegate/gateway/app.py:9)", SEND), "client's side"),
        ((SERVE, "line (/x/tidegate/gateway/call.py:9)"), "log line"),
        ((SERVE, "deal (/tidegate/src/tidegate/core/dispatching.py:9)"), "core"),
        ((SERVE, "other (/x/tidegate/classify/route.py:9)"), "classify, the rest"),
    ],
)
def test_a_sample_counts_for_the_innermost_frame_that_is_ours(frames: tuple[str, ...], part: str) -> None:
    assert part_of(frames) == part


def test_samples_are_added_by_part() -> None:
    lines = [f"{SERVE};{SEND} 3", f"{SERVE} 4", f"{SEND} 5", f"{SERVE};a name that the sampler read too late", ""]
    assert shares(lines) == {"client's side": 8, LOOP: 4}


def test_what_the_sampler_wrote_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "raw"
    file.write_bytes(b"a\xfa\x00b 3\nc 4\n")
    assert legible(file) == "a\ufffd?b 3\nc 4\n"


def test_every_part_names_modules_that_exist() -> None:
    rooms = ROOT / "src" / "tidegate"
    found = {start: (rooms / start).is_dir() or (rooms / f"{start}.py").exists() for start in PARTS}
    del found["uvicorn"]
    assert all(found.values()), found


def test_a_flame_graph_names_no_place_of_the_machine() -> None:
    svg = '<text id="title" x="1">/somewhere/py-spy record --output /tmp/x.svg</text><text id="details">kept</text>'
    shown = titled(svg)
    assert "/tmp" not in shown
    assert "/somewhere" not in shown
    assert shown.endswith('</text><text id="details">kept</text>')
