"""What the benchmarks make of their figures: ratios kept from run to run, samples of a stack by part."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks import _ratios
from benchmarks.flame import COLOURS, legible_frame
from benchmarks.parts import LOOP, PARTS, busy, drawing, legible, part_of, shares

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
SEND = "send (/x/src/tidegate/gateway/protocol.py:4)"
COMPILED = "CPyDef_tidegate___gateway___app___answer_Gateway_gen_____mypyc_generator_helper__ (tidegate/gateway/app.so)"
TURN = "uv_run (core.c:464)"
WRITE = "write (/lib/x86_64-linux-gnu/libc.so.6)"


@pytest.mark.parametrize(
    ("frames", "part"),
    [
        ((SERVE,), LOOP),
        ((), LOOP),
        ((SERVE, "run (/x/tidegate/gateway/app.py:9)", "x (/lib/json/encoder.py:1)"), "forwarding"),
        ((SERVE, "run (/x/tidegate/gateway/app.py:9)", SEND), "client's side"),
        ((SERVE, "line (/x/tidegate/gateway/call.py:9)"), "log line"),
        ((SERVE, "deal (/tidegate/src/tidegate/core/dispatching.py:9)"), "core"),
        ((SERVE, TURN, COMPILED, WRITE), "forwarding"),
        ((SERVE, "CPyDef_tidegate___core___names___Names___end (x.so)", "_Py_dict_lookup (lib.so)"), "core"),
        ((SERVE, "other (/x/tidegate/classify/route.py:9)"), "classify, the rest"),
    ],
)
def test_a_sample_counts_for_the_innermost_frame_that_is_ours(frames: tuple[str, ...], part: str) -> None:
    assert part_of(frames) == part


def test_samples_are_added_by_part() -> None:
    lines = [f"{SERVE};{SEND} 3", f"{SERVE} 4", f"{SEND} 5", f"{SERVE};a name that the sampler read too late", ""]
    assert shares(busy(lines)) == {"client's side": 8, LOOP: 4}


@pytest.mark.parametrize("waits", ["epoll_pwait (libc.so.6)", "_worker (concurrent/futures/thread.py:81);get (q.c:1)"])
def test_a_thread_that_waits_is_not_busy(waits: str) -> None:
    assert busy([f"{SERVE};{TURN};{waits} 9", f"{SERVE};{TURN} 1"]) == [([SERVE, TURN], 1)]


@pytest.mark.parametrize(
    ("frame", "name"),
    [
        (COMPILED, "Gateway.answer"),
        ("CPyDef_tidegate___core___names___Names___end (x.so)", "Names.end"),
        ("CPyDef_tidegate___classify___headers___read_headers (x.so)", "headers.read_headers"),
        ("CPyDef_tidegate___gateway___cycle___run_Cycle_gen___send (x.so)", None),
        ("CPyPy_tidegate___gateway___cycle___run_Cycle_gen___send (x.so)", None),
        ("_PyObject_Vectorcall (lib.so)", None),
        (SEND, "send"),
        (WRITE, "write"),
    ],
)
def test_a_frame_has_the_name_of_the_source(frame: str, name: str | None) -> None:
    assert legible_frame(frame) == name


def test_a_flame_graph_shows_who_calls_whom_and_no_place_of_the_machine() -> None:
    stacks = [
        ([SERVE, TURN, "loop_run_in_context (loop.c:1)", COMPILED, SEND, WRITE], 3),
        ([SERVE, TURN, COMPILED], 1),
        ([SERVE], 9),
    ]
    svg = drawing(stacks)
    shown = re.findall("<title>(.+?)</title>", svg)
    assert shown == ["a turn of the event loop: 100.0%", "Gateway.answer: 100.0%", "send: 75.0%", "write: 75.0%"]
    assert svg.count(COLOURS["kernel"]) == 2  # the call of the system, and the legend
    assert "/x/" not in svg
    assert "libc" not in svg


def test_what_the_sampler_wrote_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "raw"
    file.write_bytes(b"a\xfa\x00b 3\nc 4\n")
    assert legible(file) == "a\ufffd?b 3\nc 4\n"


def test_every_part_names_modules_that_exist() -> None:
    rooms = ROOT / "src" / "tidegate"
    found = {start: (rooms / start).is_dir() or (rooms / f"{start}.py").exists() for start in PARTS}
    assert all(found.values()), found
