"""Refusals as answers: body, headers, retry hints, the storm rule, and the event that ends a broken stream."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import _streaming

from tidegate.core import Reason
from tidegate.refusals import TABLE, Answer, Retry, Storm, answer_for, error_event, retry_headers, retry_seconds

RETRYABLE = [reason for reason, row in TABLE.items() if row.retry is not Retry.NEVER]
FINAL = [reason for reason, row in TABLE.items() if row.retry is Retry.NEVER]


def headers(answer: Answer) -> dict[bytes, bytes]:
    assert len(dict(answer.headers)) == len(answer.headers)
    return dict(answer.headers)


@pytest.mark.parametrize("reason", list(Reason))
@pytest.mark.parametrize("language", ["zh", "en"])
def test_the_body_is_openais_error(reason: Reason, language: str) -> None:
    answer = answer_for(reason, detail='a "detail"', param="model", language=language)
    row = TABLE[reason]
    assert answer.status == row.status
    error = json.loads(answer.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == (row.type, "model", row.code)
    assert error["message"] == f'{row.zh if language == "zh" else row.en} (a "detail")'
    sent = headers(answer)
    assert sent[b"content-length"] == str(len(answer.body)).encode()
    assert sent[b"content-type"] == b"application/json"
    assert sent[b"x-tidegate-reason"] == reason.encode()


def test_an_answer_says_who_and_how_long() -> None:
    sent = headers(answer_for(Reason.EXPIRED, request_id="r-1", band=2, band_name="p2", queue_s=1.5))
    assert sent[b"x-request-id"] == b"r-1"
    assert sent[b"x-tidegate-band"] == b"p2"
    assert sent[b"x-tidegate-queue-ms"] == b"1500"


def test_another_status_may_be_given() -> None:
    assert answer_for(Reason.BAD_REQUEST, status=415).status == 415


def test_a_missing_key_is_asked_for_as_http_wants() -> None:
    assert headers(answer_for(Reason.UNAUTHORIZED))[b"www-authenticate"] == b"Bearer"
    assert b"www-authenticate" not in headers(answer_for(Reason.FORBIDDEN_BAND))


@pytest.mark.parametrize("reason", FINAL)
def test_what_cannot_succeed_later_is_not_to_be_retried(reason: Reason) -> None:
    sent = headers(answer_for(reason, retry_after_s=5.0))
    assert sent[b"x-should-retry"] == b"false"
    assert b"retry-after" not in sent
    assert b"retry-after-ms" not in sent


@pytest.mark.parametrize("reason", RETRYABLE)
@pytest.mark.parametrize(
    ("band", "storm", "wanted"),
    [
        (0, Storm.CALM, b"true"),
        (2, Storm.CALM, b"true"),
        (0, Storm.STORM, b"true"),
        (1, Storm.STORM, b"false"),
        (2, Storm.STORM, b"false"),
    ],
)
def test_in_a_storm_only_the_highest_band_is_told_to_retry(
    reason: Reason, band: int, storm: Storm, wanted: bytes
) -> None:
    sent = headers(answer_for(reason, band=band, storm=storm))
    assert sent[b"x-should-retry"] == wanted
    assert b"retry-after" in sent


@pytest.mark.parametrize("wait", [None, 0.0, 2.0, 45.0, 1e9])
@pytest.mark.parametrize("reason", [Reason.SHED, Reason.QUEUE_FULL, Reason.EXPIRED, Reason.DISPLACED])
def test_two_hundred_refusals_come_back_at_twenty_different_seconds(reason: Reason, wait: float | None) -> None:
    rng = random.Random(5)
    seconds = [
        int(headers(answer_for(reason, band=2, retry_after_s=wait, jitter=rng.random()))[b"retry-after"])
        for _ in range(200)
    ]
    assert len(set(seconds)) >= 20
    assert all(1 <= second <= 60 for second in seconds)


@pytest.mark.parametrize("wait", [None, 0.0, 0.2, 0.9, 30.0, 1e9])
@pytest.mark.parametrize(("reason", "band"), [(Reason.DRAINING, 2), (Reason.TENANT_LIMIT, 1), (Reason.QUEUE_FULL, 0)])
def test_a_short_wait_is_spread_over_a_second_too(reason: Reason, band: int, wait: float | None) -> None:
    """A wait below the least hint would else bring most of them back in one millisecond."""
    sent = [headers(answer_for(reason, band=band, retry_after_s=wait, jitter=part / 100)) for part in range(100)]
    assert len({hints[b"retry-after-ms"] for hints in sent}) == 100


@given(
    retry=st.sampled_from([Retry.SOON, Retry.OVERLOAD]),
    wait=st.none() | st.floats(-5, 1e12),
    jitter=st.floats(0, 1, exclude_max=True),
    band=st.integers(0, 7),
)
def test_hints_are_bounded_and_agree(retry: Retry, wait: float | None, jitter: float, band: int) -> None:
    hints = dict(retry_headers(retry_seconds(retry, wait, jitter=jitter, band=band)))
    seconds, ms = int(hints[b"retry-after"]), int(hints[b"retry-after-ms"])
    assert 1 <= seconds <= 60
    assert (seconds - 1) * 1000 < ms <= seconds * 1000
    if wait is not None and 1 <= wait <= 30:
        assert ms >= round(wait * 1000)


def test_the_highest_band_is_not_kept_waiting() -> None:
    assert retry_seconds(Retry.OVERLOAD, 2.0, jitter=0.999, band=0) < 3.1
    assert retry_seconds(Retry.SOON, 7.0, jitter=0.999, band=2) < 9


def _raised_by(stream: bytes, sse: Callable[[], Any]) -> Exception | None:
    for event in sse().iter_bytes(iter([stream])):
        data = event.json()
        if isinstance(data, dict) and data.get("error"):
            return openai.APIError(data["error"]["message"], request=None, body=data["error"])  # type: ignore[arg-type]
    return None


@pytest.mark.parametrize("before", [b"", b"data: {}\n\n", b"data: {}\r\n\r\n", b"data: {}", b"data: {}\n", b": ping\n"])
def test_a_broken_stream_ends_with_one_event_that_the_official_client_raises(before: bytes) -> None:
    event = error_event(Reason.UPSTREAM_ERROR, detail="gone")
    raised = _raised_by(before + event, _streaming.SSEDecoder)
    assert isinstance(raised, openai.APIError)
    assert raised.code == "upstream_error"
    assert event.count(b"data: ") == 1
    assert b"[DONE]" not in event
    assert event.endswith(b"\n\n")
