"""The values of an event log come back from it as they were, whatever build wrote it and whatever version."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidegate.core import Outcome, Policy, Reason, Release, Requeue, Stoppable, Ticket, WorkEstimate
from tidegate.runtime import EventLog
from tidegate.runtime.forms import ReleaseForm, RequeueForm, TicketForm, WorkForm, made
from tidegate.testing import run_virtual

FORMS: list[tuple[type, Any]] = [
    (TicketForm, Ticket),
    (WorkForm, WorkEstimate),
    (ReleaseForm, Release),
    (RequeueForm, Requeue),
]
FULL: list[tuple[type, Any]] = [
    (
        TicketForm,
        Ticket(
            id="t1", pool="m", band=2, tenant="acme", work=WorkEstimate(300, 40), flow="crowd", ttl_s=2.5,
            deadline=9.75, arrived=4.125, size_bytes=812, name="late",
            depends_on=("one", "acme/two"), affinity=77, patient=True,
            stoppable=Stoppable.ALWAYS,
        ),
    ),
    (WorkForm, WorkEstimate(12, 13)),
    (ReleaseForm, Release(Outcome.FAILED, 301, 41, 0.25, 0.0625)),
    (RequeueForm, Requeue(avoid=True, reason=Reason.UPSTREAM_TIMEOUT, begun=True)),
]  # fmt: skip


def told(value: Any) -> dict[str, Any]:
    return {
        field.name: told(at) if dataclasses.is_dataclass(at := getattr(value, field.name)) else at
        for field in dataclasses.fields(value)
    }


@pytest.mark.parametrize(("form", "value"), FULL)
def test_every_field_comes_back(form: type, value: Any) -> None:
    text = msgspec.json.encode(value)
    assert msgspec.json.decode(text) == msgspec.json.decode(msgspec.json.encode(told(value)))
    assert told(made(msgspec.json.decode(text, type=form))) == told(value)


@pytest.mark.parametrize(("form", "value"), FULL)
def test_no_field_of_the_examples_is_at_its_default(form: type, value: Any) -> None:
    bare = msgspec.structs.fields(form)
    assert [field.name for field in bare] == [field.name for field in dataclasses.fields(value)]
    for field in bare:
        assert field.required or getattr(value, field.name) != made(field.default)


@pytest.mark.parametrize(("form", "kind"), FORMS)
def test_what_an_older_log_does_not_have_is_as_if_it_had_not_been_given(form: type, kind: Any) -> None:
    given = {"id": "t1", "pool": "m", "band": 1, "tenant": "acme"} if kind is Ticket else {}
    assert told(made(msgspec.convert(given, form))) == told(kind(**given))
    needed = [p.name for p in inspect.signature(form).parameters.values() if p.default is p.empty]
    assert needed == list(given)


@pytest.mark.parametrize("value", [value for _, value in FULL])
def test_a_changed_copy_differs_in_that_alone(value: Any) -> None:
    first = dataclasses.fields(value)[0].name
    copy = dataclasses.replace(value, **{first: getattr(value, first)})
    assert told(copy) == told(value)
    assert repr(copy) == repr(value)


def test_the_log_writes_them_by_name(tmp_path: Path) -> None:
    async def story() -> None:
        log = EventLog(tmp_path / "events.jsonl", Policy())
        log.append(1.5, "submit", (FULL[0][1],))
        log.close()

    run_virtual(story())
    written = msgspec.json.decode((tmp_path / "events.jsonl").read_bytes().splitlines()[1])
    assert written == [1.5, "submit", [msgspec.json.decode(msgspec.json.encode(told(FULL[0][1])))]]


def test_what_is_no_form_stays_as_it_is() -> None:
    assert made(7) == 7
