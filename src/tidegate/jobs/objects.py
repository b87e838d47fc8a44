"""Files and batches as OpenAI's API writes them, with what we add under ``x_tidegate``. Pure."""

from __future__ import annotations

from typing import Any

from tidegate.stores import Batch, BatchState, DeadLetter, StoredFile


def file_object(file: StoredFile) -> dict[str, Any]:
    """Write a file."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": int(file.created_at_utc),
        "expires_at": _at(file.expires_at_utc),
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
    }


def page(objects: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    """Write a page, given one object more than its limit where there are more."""
    shown = objects[:limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(objects) > limit,
    }


def batch_object(batch: Batch, *, expected_at_utc: float | None) -> dict[str, Any]:
    """Write a batch.

    Args:
        batch: as it stands.
        expected_at_utc: when it will be done at its present rate, ``None`` when that is unknown.
    """
    ended = {state: batch.ended_at_utc if batch.state is state else None for state in BatchState}
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": _errors(batch),
        "input_file_id": batch.input_file_id,
        "completion_window": batch.window,
        "status": batch.state.value,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": int(batch.created_at_utc),
        "in_progress_at": _at(batch.in_progress_at_utc),
        "expires_at": int(batch.expires_at_utc),
        "finalizing_at": _at(batch.finalizing_at_utc),
        "completed_at": _at(ended[BatchState.COMPLETED]),
        "failed_at": _at(ended[BatchState.FAILED]),
        "expired_at": _at(ended[BatchState.EXPIRED]),
        "cancelling_at": _at(batch.cancelling_at_utc),
        "cancelled_at": _at(ended[BatchState.CANCELLED]),
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "metadata": dict(batch.metadata) or None,
        "x_tidegate": {
            "band": batch.band,
            "expected_at": _at(expected_at_utc),
            "dead": batch.dead,
            "redrive_of": batch.redrive_of,
        },
    }


def letter_object(letter: DeadLetter) -> dict[str, Any]:
    """Write a dead letter; its id names batch and line."""
    answer = letter.answer
    return {
        "id": f"{letter.batch_id}.{letter.line}",
        "object": "dead_letter",
        "batch_id": letter.batch_id,
        "line": letter.line,
        "tenant": letter.tenant,
        "custom_id": letter.custom_id,
        "attempts": letter.attempts + 1,  # the store counts those before the last
        "died_at": int(letter.died_at_utc),
        "status": answer.status,
        "error": answer.message or answer.body[:500].decode(errors="replace"),
    }


def _errors(batch: Batch) -> dict[str, Any] | None:
    if not batch.errors:
        return None
    rows = [{"code": e.code, "message": e.message, "param": e.param, "line": e.line} for e in batch.errors]
    return {"object": "list", "data": rows}


def _at(at_utc: float | None) -> int | None:
    return None if at_utc is None else int(at_utc)
