"""The trace reader: plain and gzip, paths and open files, and what it says about a broken one."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest

from tidegate.simulation import TraceError, TraceRow, read_trace, replayed

CSV = """arrival_ms,prompt_tokens,output_tokens,tenant,band
0,100,20,a,p0
250.5,7,1,b,
"""
ROWS = [TraceRow(0.0, 100, 20, "a", "p0"), TraceRow(0.2505, 7, 1, "b", "")]


def test_reads_plain_and_gzip_by_path(tmp_path: Path) -> None:
    plain, packed = tmp_path / "trace.csv", tmp_path / "trace-without-suffix"
    plain.write_text(CSV)
    packed.write_bytes(gzip.compress(CSV.encode()))
    assert list(read_trace(plain)) == list(read_trace(str(packed))) == ROWS


@pytest.mark.parametrize(
    "file",
    [
        io.StringIO(CSV),
        io.BytesIO(CSV.encode()),
        io.BytesIO(gzip.compress(CSV.encode())),
        io.BytesIO(b"\xef\xbb\xbf" + CSV.encode()),
    ],
    ids=["text", "binary", "gzip", "byte-order-mark"],
)
def test_reads_open_files(file: io.IOBase) -> None:
    assert list(read_trace(file)) == ROWS  # type: ignore[arg-type]


def test_lengths_alone_are_a_batch_that_is_there_from_the_start() -> None:
    rows = list(read_trace(io.StringIO("prompt_tokens,output_tokens\n2730,167\n0,0\n")))
    assert rows == [TraceRow(0.0, 2730, 167), TraceRow(0.0, 1, 1)]


def test_runs_of_prefix_blocks_are_spelled_out() -> None:
    text = "arrival_ms,prompt_tokens,output_tokens,prefix_blocks_512\n0,2560,3,5 9-12\n"
    rows = list(read_trace(io.StringIO(text)))
    assert rows[0].prefix == (5, 9, 10, 11, 12)
    (request,) = replayed(rows, band=1)
    assert (request.chain, request.unit_tokens) == ((5, 9, 10, 11, 12), 512)


def test_replay_keeps_the_timing_at_another_speed() -> None:
    offered = list(replayed(ROWS, band=2, speed=2.0, start=10.0))
    assert [request.at for request in offered] == [10.0, 10.12525]
    assert [request.tenant for request in offered] == ["a", "b"]
    assert next(replayed(ROWS, band=0, tenant="shop")).tenant == "shop"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected a column 'prompt_tokens', got an empty file"),
        ("prompt_tokens\n1\n", "expected a column 'output_tokens'"),
        ("prompt_tokens,output_tokens\n1,2\nx,2\n", "line 3: prompt_tokens: expected a number, got 'x'"),
        ("prompt_tokens,output_tokens\n1\n", "line 2: output_tokens: expected a number, got ''"),
        ("prompt_tokens,output_tokens\n-1,2\n", "line 2: prompt_tokens: expected a number of at least 0, got -1"),
        ("prompt_tokens,output_tokens\nnan,2\n", "line 2: prompt_tokens: expected a number of at least 0, got nan"),
        ("arrival_ms,prompt_tokens,output_tokens\n9,1,1\n8,1,1\n", "line 3: expected arrivals in order"),
        ("prompt_tokens,output_tokens,prefix_blocks_512\n1,1,4-x\n", "line 2: prefix_blocks_512"),
        ("prompt_tokens,output_tokens,prefix_blocks_512\n1,1,9-5\n", "line 2: prefix_blocks_512: expected numbers and"),
        ("prompt_tokens,output_tokens,prefix_blocks_512\n1,1,1-99999999999999\n", "expected at most 100000 blocks"),
        ("prompt_tokens,output_tokens,prefix_blocks_512\n1,1,1-99999 1-99999\n", "expected at most 100000 blocks"),
    ],
)
def test_broken_traces_name_the_line(text: str, said: str) -> None:
    with pytest.raises(TraceError, match="trace") as caught:
        list(read_trace(io.StringIO(text)))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b"\x89\xff\x00\x84",
        CSV.encode("utf-16"),
        gzip.compress(CSV.encode())[:-12],
        gzip.compress(CSV.encode())[:-8] + bytes(8),
        b"\x1f\x8b" + bytes(30),
        b"\x1f\x8b\x08" + bytes(7) + b"\xff" * 30,
        CSV.encode() + b"9" * 200_000,
    ],
    ids=["binary", "utf-16", "cut", "checksum", "no-gzip", "no-deflate", "endless-field"],
)
def test_files_that_are_no_text_or_damaged_are_told_by_name(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=r"trace\.csv: expected CSV in UTF-8, plain or in gzip"):
        list(read_trace(path))
