"""The refusal table is the one of the contract, and every reason has a row."""

from __future__ import annotations

import re

import pytest

from tidegate.core import Reason
from tidegate.refusals import TABLE, Retry

CONTRACT = {
    "queue_full": (429, "queue_full"),
    "displaced": (429, "displaced"),
    "expired": (429, "queue_timeout"),
    "shed": (429, "load_shed"),
    "tenant_limit": (429, "rate_limit_exceeded"),
    "preempted": (503, "preempted"),
    "upstream_busy": (429, "upstream_busy"),
    "no_backend": (503, "no_backend"),
    "upstream_error": (502, "upstream_error"),
    "upstream_timeout": (504, "upstream_timeout"),
    "draining": (503, "draining"),
    "cancelled": (499, "cancelled"),
    "unauthorized": (401, "unauthorized"),
    "forbidden_band": (403, "forbidden_band"),
    "unknown_model": (404, "unknown_model"),
    "bad_request": (400, "bad_request"),
    "too_large": (413, "too_large"),
    "dependency_failed": (424, "dependency_failed"),
    "dependency_cycle": (409, "dependency_cycle"),
}


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_row(reason: Reason) -> None:
    assert reason in TABLE, f"the refusal table has no row for {reason}"


def test_the_table_is_the_contract() -> None:
    assert {str(reason): (row.status, row.code) for reason, row in TABLE.items()} == CONTRACT


@pytest.mark.parametrize(("reason", "row"), TABLE.items())
def test_rows_are_sound(reason: Reason, row: object) -> None:
    found = TABLE[reason]
    assert found is row
    assert found.type == {4: "invalid_request_error", 5: "server_error"}[found.status // 100] or found.status == 429
    assert (found.type == "rate_limit_error") is (found.status == 429)
    assert (found.retry is Retry.NEVER) is (found.status in range(400, 500) and found.status != 429)
    assert found.en.endswith(".")
    assert found.zh.endswith("。")
    assert re.search(r"[\u4e00-\u9fff]", found.zh)
