"""The byte path's cost as ratios between proxies measured in the same minute, so that any machine can judge."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from benchmarks import bytepath

pytestmark = pytest.mark.bench

SMALL = bytepath.Size(rounds=1, plain=2_000, streams=32, latency=200)


def test_scheduling_costs_less_than_the_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = bytepath.measure(bytepath.bare_command, SMALL)
    real = bytepath.measure(lambda port, backend: bytepath.serve_command(tmp_path, port, backend), SMALL)
    with capsys.disabled():
        for name, figures in (("bare proxy", bare), ("tidegate serve", real)):
            costs = f"{figures.plain_us:5.0f} µs a request, {figures.chunk_us:4.1f} µs a chunk"
            sys.stdout.write(f"\n{name:<15}{costs}, added {figures.added}")
    assert real.chunk_us <= 2 * bare.chunk_us
    assert real.plain_us <= 5 * bare.plain_us
