"""Lines of input files, and the records that become of them."""

from __future__ import annotations

import codecs
import json

import pytest

from tidegate.jobs.lines import body_of, read_line
from tidegate.jobs.records import is_output, line_of, one_line
from tidegate.stores import Answer, BatchFault, FinalRecord, NewRow, RecordKind

CHAT = "/v1/chat/completions"
GOOD = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": "m"}}


def read(data: bytes) -> NewRow | BatchFault | None:
    return read_line(data, line=7, offset=100, endpoint=CHAT)


def test_a_line_is_known_by_its_place() -> None:
    data = json.dumps(GOOD).encode() + b"\r\n"
    assert read(data) == NewRow(7, "a", 100, len(data))
    assert json.loads(body_of(data)) == {"model": "m"}
    assert read(b" \t\r\n") is None


def test_a_file_may_begin_with_the_mark_that_some_editors_write() -> None:
    data = json.dumps(GOOD).encode() + b"\n"
    marked = codecs.BOM_UTF8 + data
    assert read_line(marked, line=1, offset=0, endpoint=CHAT) == NewRow(1, "a", 3, len(data))
    assert json.loads(body_of(marked[3 : 3 + len(data)])) == {"model": "m"}
    assert read_line(codecs.BOM_UTF8 + b"\n", line=1, offset=0, endpoint=CHAT) is None
    assert isinstance(read(marked), BatchFault)  # in the middle of a file it is damage


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"custom_id": None}, "missing_required_parameter", "custom_id"),
        ({"custom_id": ""}, "missing_required_parameter", "custom_id"),
        ({"custom_id": "x" * 513}, "invalid_custom_id", "custom_id"),
        ({"custom_id": "a\x00"}, "invalid_custom_id", "custom_id"),
        ({"custom_id": 5}, "invalid_type", "custom_id"),
        ({"method": "GET"}, "invalid_method", "method"),
        ({"method": None}, "invalid_method", "method"),
        ({"url": "/v1/embeddings"}, "mismatched_url", "url"),
        ({"body": "text"}, "missing_required_parameter", "body"),
        ({"body": None}, "missing_required_parameter", "body"),
        ({"body": []}, "missing_required_parameter", "body"),
    ],
)
def test_what_is_wrong_with_a_line_is_named(change: dict[str, object], code: str, param: str) -> None:
    fault = read(json.dumps({**GOOD, **change}).encode())
    assert isinstance(fault, BatchFault)
    assert (fault.code, fault.param, fault.line) == (code, param, 7)


@pytest.mark.parametrize("data", [b"{", b"[]", b"nonsense", b'{"custom_id": "\xff"}', b"[" * 5000])
def test_what_is_no_json_object_is_a_fault(data: bytes) -> None:
    fault = read(data)
    assert isinstance(fault, BatchFault)
    assert fault.code in ("invalid_json_line", "invalid_type")


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (b'{"a":1}', b'{"a":1}'),
        (b'{\n "a": 1.50,\r\n "b": "x\\n"}\n', b'{"a":1.50,"b":"x\\n"}'),
        (b"not json", b'"not json"'),
        (b"{not json}", b'"{not json}"'),
        (b"", b'""'),
        (b'{"a":"\xff"}', '"{\\"a\\":\\"�\\"}"'.encode()),
    ],
)
def test_a_body_becomes_one_line_of_json(body: bytes, line: bytes) -> None:
    assert one_line(body) == line
    json.loads(line)


def test_records_look_like_openais() -> None:
    done = FinalRecord(
        line=3, custom_id="a", kind=RecordKind.COMPLETED, answer=Answer(status=200, request_id="q", body=b'{"x":1}')
    )
    assert json.loads(line_of("batch_1", done)) == {
        "id": "batch_req_1_3",
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "q", "body": {"x": 1}},
        "error": None,
    }
    assert is_output(done)
    for kind in (RecordKind.CANCELLED, RecordKind.EXPIRED):
        record = FinalRecord(line=3, custom_id="a", kind=kind, answer=Answer())
        found = json.loads(line_of("batch_1", record))
        assert (found["response"], found["error"]["code"]) == (None, kind.value)
        assert not is_output(record)
    dead = FinalRecord(line=3, custom_id="a", kind=RecordKind.DEAD, answer=Answer(code="upstream_error", message="m"))
    assert json.loads(line_of("batch_1", dead))["error"] == {"code": "upstream_error", "message": "m"}
