"""What clients ask for when they create a batch."""

from __future__ import annotations

import json

import pytest

from tidegate.jobs.wishes import WishError, read_batch

BATCH = {"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h"}


def body(**more: object) -> bytes:
    return json.dumps(BATCH | more).encode()


@pytest.mark.parametrize("more", [{}, {"output_expires_after": None}, {"metadata": None}])
def test_a_plain_batch_is_read(more: dict[str, object]) -> None:
    assert read_batch(body(**more)).window_s == 86_400


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"output_expires_after": {"anchor": "created_at", "seconds": 3600}}, "output_expires_after"),
        ({"endpoint": "/v1/images"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"metadata": {"k": "v" * 600}}, "metadata"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_name(more: dict[str, object], field: str) -> None:
    with pytest.raises(WishError, match=field) as refused:
        read_batch(body(**more))
    assert refused.value.param == field
