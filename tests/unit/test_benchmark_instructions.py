"""What callgrind wrote is read, and each instruction counts for one part."""

from __future__ import annotations

from benchmarks.instructions import COLLECTOR, REST, part_of, parts, read

OUT = """\
version: 1
events: Ir

fl=(1) gateway.c
fn=(1) CPyDef_tidegate___gateway___cycle___Cycle___whole
10 100
cfn=(2) PyBytes_Join
calls=3 0
12 90
+2 5

fn=(2)
1 60
cfn=(3) memcpy
calls=6 0
* 30

fn=(3) memcpy
1 40

fn=(4) CPyDef_tidegate___core___scheduler___Scheduler___submit
7 7
cfn=(3)
calls=2 0
7 10

fn=(5) gc_collect_main'2
3 11

fn=(6) main
1 1
"""


def test_costs_of_libraries_go_to_who_called_them() -> None:
    own, calls = read(OUT.splitlines())
    assert own["CPyDef_tidegate___gateway___cycle___Cycle___whole"] == 105
    assert own["gc_collect_main"] == 11
    assert calls["memcpy"] == {"PyBytes_Join": 6, "CPyDef_tidegate___core___scheduler___Scheduler___submit": 2}
    found = parts(own, calls)
    assert found["client's side"] == 105 + 60 + 40 * 6 / 8
    assert found["core"] == 7 + 40 * 2 / 8
    assert (found[COLLECTOR], found[REST]) == (11, 1)
    assert sum(found.values()) == sum(own.values())


def test_functions_that_call_each_other_end() -> None:
    own, calls = read(["fn=a", "1 8", "cfn=b", "calls=1 0", "1 1", "fn=b", "1 8", "cfn=a", "calls=1 0", "1 1"])
    assert round(sum(parts(own, calls).values())) == 16


def test_parts_of_functions() -> None:
    assert part_of("CPyPy_tidegate___classify___estimates___LearnedPredictor___predict") == "estimate"
    assert part_of("CPyDef_tidegate___telemetry___recorder___Recorder___finished") == "metrics"
    assert part_of("PyDict_GetItem") is None
