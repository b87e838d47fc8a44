"""Forms: the model that they name, wherever it stands and whatever else is in them; and which paths may pass."""

from __future__ import annotations

import pytest

from tidegate.classify import check_json, is_form, may_pass, model_of_form, with_model

KIND = b"multipart/form-data; boundary=aB3"
LINE = b"--aB3\r\n"
END = b"--aB3--\r\n"


def part(name: bytes, value: bytes, more: bytes = b"") -> bytes:
    return LINE + b'Content-Disposition: form-data; name="' + name + b'"' + more + b"\r\n\r\n" + value + b"\r\n"


FILE = part(b"file", bytes(range(256)) * 50 + b'name="model"\r\n\r\nx', b'; filename="a"\r\nContent-Type: audio/wav')


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (part(b"model", b"m-1") + FILE + END, KIND),
        (FILE + part(b"language", b"zh") + part(b"model", b"m-1") + END, KIND),
        (b"preamble\r\n" + part(b"model", b"m-1") + END, KIND),
        (part(b"model", b"m-1") + END, b'multipart/form-data; charset=x; boundary="aB3"'),
        (part(b"model", b"m-1").replace(b'"', b"").replace(b"Content-Dis", b"content-dis") + END, KIND),
    ],
)
def test_the_model_is_found_and_can_be_replaced(body: bytes, kind: bytes) -> None:
    found = model_of_form(body, kind)
    assert found is not None
    name, place = found
    assert name == "m-1"
    assert with_model(body, place, "other") == body.replace(b"m-1", b"other")


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (FILE + END, KIND),
        (part(b"model", b"a") + part(b"model", b"b") + END, KIND),
        (part(b"model", b"a" * 300) + END, KIND),
        (part(b"model", b"a"), KIND),
        (part(b"model", b"a") + END, b"multipart/form-data"),
        (part(b"model", b"a") + END, b"multipart/form-data; boundary=other"),
        (part(b"xmodel", b"a") + END, KIND),
        (part(b"x", b"a") * 100 + part(b"model", b"a") + END, KIND),
        (LINE + b"x" * 5000 + b'name="model"\r\n\r\na\r\n' + END, KIND),
        (b"", KIND),
    ],
)
def test_a_form_that_names_no_model_or_several_names_none(body: bytes, kind: bytes) -> None:
    assert model_of_form(body, kind) is None


def test_forms_are_taken_where_they_are_expected() -> None:
    headers = {b"content-type": b" Multipart/Form-Data; boundary=x"}
    assert is_form(headers)
    assert check_json(headers) is not None
    assert check_json(headers, forms=True) is None
    assert check_json({b"content-type": b"text/plain"}, forms=True) is not None


@pytest.mark.parametrize(
    ("path", "passes"),
    [
        (b"/v1/rerank", True),
        (b"/v1/messages/count_tokens", True),
        (b"/v1/audio/transcriptions", True),
        (b"/v1/files", False),
        (b"/v1/files/x", False),
        (b"/v1/Files", False),
        (b"/v1/Responses/x/cancel", False),
        (b"/v1/CHAT/completions/x", False),
        (b"/v1/unload_lora_adapter", False),
        (b"/v1/responses/x/cancel", False),
        (b"/v1/messages/batches/x", False),
        (b"/v1/", False),
        (b"/v1", False),
        (b"/v2/rerank", False),
        (b"/v1/a/../b", False),
        (b"/v1/.hidden", False),
        (b"/v1//rerank", False),
        (b"/v1/rerank/", False),
        (b"/v1/re%72ank", False),
        (b"/v1/rerank\n", False),
    ],
)
def test_which_paths_pass(path: bytes, passes: bool) -> None:
    assert may_pass(path) is passes
