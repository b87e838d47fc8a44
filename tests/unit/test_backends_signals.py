from __future__ import annotations

import dataclasses
import inspect

import pytest

from tidegate.backends import ENGINES
from tidegate.backends.engine_signals import SIGNALS, MetricNames, Slot, read_page, read_slots
from tidegate.core import Reading
from tidegate.simserver import metrics

VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 6.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.75
vllm:num_preemptions_total{engine="0",model_name="m"} 5.0
vllm:num_preemptions_created{engine="0",model_name="m"} 1.79e+09
vllm:generation_tokens_total{engine="0",model_name="m"} 1234.0
vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0",num_gpu_blocks="31"} 1.0
"""

SGLANG = b"""sglang:num_running_reqs{engine_type="unified",model_name="m",priority="",tp_rank="0",pp_rank="0"} 7
sglang:num_running_reqs{engine_type="unified",model_name="m",priority="5",tp_rank="0",pp_rank="0"} 4
sglang:num_running_reqs{engine_type="unified",model_name="m",priority="9",tp_rank="0",pp_rank="0"} 3
sglang:num_queue_reqs{engine_type="unified",model_name="m",priority="",tp_rank="0",pp_rank="0"} 3
sglang:num_queue_reqs{engine_type="unified",model_name="m",priority="",tp_rank="1",pp_rank="0"} 3
sglang:token_usage{engine_type="unified",model_name="m",tp_rank="0"} 0.28
sglang:num_retracted_reqs{model_name="m",tp_rank="0"} 1
sglang:num_retracted_requests_total{model_name="m",tp_rank="0"} 48
sglang:generation_tokens_total{model_name="m"} 7.557572e+06
sglang:max_total_num_tokens{model_name="m"} 471258
"""

LLAMACPP = b"""# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 4
llamacpp:requests_deferred 6
llamacpp:tokens_predicted_total 999
"""


def names_of(engine: str) -> MetricNames:
    names = SIGNALS[engine]
    assert names is not None
    return names


@pytest.mark.parametrize(
    ("engine", "page", "reading"),
    [
        ("vllm", VLLM, Reading("b", 3.0, 0.25, 6, 2, 5, 496, 1234)),
        ("sglang", SGLANG, Reading("b", 3.0, 0.72, 7, 3, 48, 471_258, 7_557_572)),
        ("llamacpp", LLAMACPP, Reading("b", 3.0, None, 4, 6, None, None, 999)),
    ],
)
def test_what_an_engine_shows(engine: str, page: bytes, reading: Reading) -> None:
    assert read_page(names_of(engine), page, backend="b", at=3.0) == reading


def test_data_parallel_ranks_are_added_and_the_fullest_counts() -> None:
    second = VLLM.replace(b'engine="0"', b'engine="1"').replace(b"0.75", b"0.9")
    reading = read_page(names_of("vllm"), VLLM + second, backend="b", at=0.0)
    assert reading is not None
    assert reading.kv_free == pytest.approx(0.1)
    assert dataclasses.replace(reading, kv_free=None) == Reading("b", 0.0, None, 12, 4, 10, 992, 2468)


def test_an_older_name_counts_where_the_newer_is_missing() -> None:
    page = VLLM.replace(b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc")
    reading = read_page(names_of("vllm"), page, backend="b", at=0.0)
    assert reading is not None
    assert reading.kv_free == 0.25


def test_blocks_that_are_not_counted_yet_are_unknown() -> None:
    page = VLLM.replace(b'num_gpu_blocks="31"', b'num_gpu_blocks="None"')
    reading = read_page(names_of("vllm"), page, backend="b", at=0.0)
    assert reading is not None
    assert reading.kv_tokens is None


@pytest.mark.parametrize(("used", "free"), [(b"1.2", 0.0), (b"-0.1", 1.0)])
def test_a_part_stays_a_part(used: bytes, free: float) -> None:
    reading = read_page(names_of("vllm"), VLLM.replace(b"0.75", used), backend="b", at=0.0)
    assert reading is not None
    assert reading.kv_free == free


@pytest.mark.parametrize("page", [b"", b"<html>502 Bad Gateway</html>", LLAMACPP])
def test_a_page_of_something_else_is_no_reading(page: bytes) -> None:
    assert read_page(names_of("vllm"), page, backend="b", at=0.0) is None


def test_every_engine_has_a_row() -> None:
    assert set(SIGNALS) == set(ENGINES)
    assert SIGNALS["openai"] is None


def test_the_simulated_engine_shows_every_name_of_the_table() -> None:
    source = inspect.getsource(metrics)
    for field in dataclasses.fields(MetricNames):
        for name in [] if field.name == "slots" else getattr(names_of("tidegate"), field.name)[:1]:
            assert f'"{name.decode().removeprefix("vllm:").removesuffix("_total")}"' in source


def test_slots() -> None:
    page = b'[{"id":0,"n_ctx":1024,"is_processing":true,"prompt":"x"},{"id":1,"n_ctx":1024,"is_processing":false}]'
    assert read_slots(page) == [Slot(is_processing=True, n_ctx=1024), Slot(n_ctx=1024)]
    for other in (b"", b"[]", b'{"error":{"code":501}}', b"[1]"):
        assert read_slots(other) is None
