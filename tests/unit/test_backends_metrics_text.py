from __future__ import annotations

import random
import time

import pytest

from tidegate.backends.metrics_text import Sample, find_samples

NAME = b"vllm:num_requests_running"


@pytest.mark.parametrize(
    ("line", "samples"),
    [
        (b"vllm:num_requests_running 3.0", [Sample({}, 3.0)]),
        (b"vllm:num_requests_running\t3 1395066363000", [Sample({}, 3.0)]),
        (
            b'vllm:num_requests_running{engine="0",model_name="m"} 1e+01',
            [Sample({"engine": "0", "model_name": "m"}, 10)],
        ),
        (
            b'vllm:num_requests_running{a="x}y",b="q\\"q\\\\n\\n",} -2.5\r',
            [Sample({"a": "x}y", "b": 'q"q\\n\n'}, -2.5)],
        ),
        (b"vllm:num_requests_running{} .5", [Sample({}, 0.5)]),
        # Other metrics whose name begins or ends with it, or that talk of it.
        (b"vllm:num_requests_running_by_lora 3", []),
        (b"x_vllm:num_requests_running 3", []),
        (b"# TYPE vllm:num_requests_running gauge", []),
        # What is no number that can be used.
        (b"vllm:num_requests_running NaN", []),
        (b"vllm:num_requests_running +Inf", []),
        (b"vllm:num_requests_running 1e999", []),
        (b"vllm:num_requests_running 1_000", []),
        (b"vllm:num_requests_running", []),
        (b'vllm:num_requests_running{a="b" 3', []),
        (b"vllm:num_requests_running 3 4 5", []),
    ],
)
def test_lines(line: bytes, samples: list[Sample]) -> None:
    assert find_samples(line, NAME) == samples
    assert find_samples(b"other 1\n" + line + b"\nother 2\n", NAME) == samples


def test_every_line_of_a_metric_is_found_in_order() -> None:
    page = b"".join(b'm{engine="%d"} %d\nm_sum 9\n' % (number, number * 2) for number in range(5))
    assert [sample.value for sample in find_samples(page, b"m")] == [0, 2, 4, 6, 8]


def test_no_page_of_random_bytes_is_an_error() -> None:
    rng = random.Random(1)
    for _ in range(2000):
        page = bytes(rng.choice(b'm{}=",\\\n \t0123.eE+-NaIf#\xff') for _ in range(40))
        find_samples(page, b"m")


@pytest.mark.parametrize(
    "tail", [b'm{a="', b"m{" + b'a="b",' * 30_000, b"m " + b"1" * 200_000, b'm{a="\\' + b"\\" * 99_999]
)
def test_a_hostile_page_takes_no_long_search(tail: bytes) -> None:
    page = (b"m{" * 3 + b"\n") * 20_000 + tail
    began = time.thread_time()
    assert find_samples(page, b"m") == []
    assert time.thread_time() - began < 1.0
