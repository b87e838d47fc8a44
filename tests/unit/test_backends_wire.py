"""Request heads and backend addresses, as bytes."""

from __future__ import annotations

import pytest

from tidegate.backends import Upstream, wire
from tidegate.backends.framing import start_of_only_chunk
from tidegate.backends.wire import Heads, parse_address


@pytest.mark.parametrize(
    ("url", "host", "port", "authority", "path"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1", 8000, b"127.0.0.1:8000", b""),
        ("http://127.0.0.1:8000/", "127.0.0.1", 8000, b"127.0.0.1:8000", b""),
        ("http://engine", "engine", 80, b"engine", b""),
        ("http://engine:80", "engine", 80, b"engine", b""),
        ("https://API.example.com/openai/", "api.example.com", 443, b"api.example.com", b"/openai"),
        ("https://api.example.com:80", "api.example.com", 80, b"api.example.com:80", b""),
        ("http://[::1]:8000/a/b", "::1", 8000, b"[::1]:8000", b"/a/b"),
        ("http://[fe80::1]", "fe80::1", 80, b"[fe80::1]", b""),
        ("http://bücher.example", "xn--bcher-kva.example", 80, b"xn--bcher-kva.example", b""),
    ],
)
def test_an_address_is_split(url: str, host: str, port: int, authority: bytes, path: bytes) -> None:
    address = parse_address(url)
    assert (address.host, address.port, address.authority, address.path) == (host, port, authority, path)
    assert address.tls is url.startswith("https")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "engine:8000",
        "ftp://engine",
        "http://",
        "http://engine:99999",
        "http://engine:x",
        "http://user:secret@engine",
        "ftp://user:secret@engine",
        "http://engine?a=b",
        "http://engine#a",
        "http://engine/a b",
        "http://engine/ä",
    ],
)
def test_an_address_that_is_none_is_refused_without_showing_a_secret(url: str) -> None:
    with pytest.raises(ValueError) as caught:
        Upstream(url)
    assert "secret" not in str(caught.value)


def test_headers_for_all_requests_are_checked_at_once() -> None:
    with pytest.raises(ValueError, match="authorization") as caught:
        Upstream("http://engine", headers=[(b"authorization", b"Bearer secret\n")])
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("method", "length", "line"),
    [
        (b"POST", 5, b"content-length: 5\r\n"),
        (b"POST", 0, b"content-length: 0\r\n"),
        (b"GET", 5, b"content-length: 5\r\n"),
        (b"GET", 0, b""),
        (b"HEAD", 0, b""),
    ],
)
def test_the_length_is_written_where_a_body_may_be(method: bytes, length: int, line: bytes) -> None:
    heads = Heads(b"engine:1", b"", [(b"authorization", b"Bearer k")])
    for _ in range(2):
        head = heads.render(method, b"/v1/x?y=1", [(b"a", b"b"), (b"a", b"")], b"x" * length)
        assert head == (
            b"%b /v1/x?y=1 HTTP/1.1\r\nhost: engine:1\r\nauthorization: Bearer k\r\n%ba: b\r\na: \r\n\r\n%b"
            % (method, line, b"x" * length)
        )


def test_first_lines_are_remembered_within_bounds_and_checked_however_many_have_passed() -> None:
    heads = Heads(b"engine%d", b"/%b", ())
    for i in range(600):
        head = heads.render(b"POST", b"/v1/%%d%d" % i, [(b"a", b"b")], b"1234567")
        assert head == b"POST /%%b/v1/%%d%d HTTP/1.1\r\nhost: engine%%d\r\ncontent-length: 7\r\na: b\r\n\r\n1234567" % i
        assert len(heads._posts) <= 256  # clients choose targets
    before = len(heads._posts)
    heads.render(b"POST", b"/" + b"x" * 1025, [], b"")
    assert len(heads._posts) == before
    for method, target in ((b"POST", b"/ x"), (b"GET", b"/ x"), (b"GET\r\n", b"/"), (b"", b"/"), (b"GET", b"")):
        for _ in range(2):
            with pytest.raises(ValueError, match="without spaces"):
                heads.render(method, target, [], b"")
    with pytest.raises(ValueError, match="a host"):
        Heads(b"a\r\nb: c", b"", [])


def test_names_are_checked_however_many_have_passed() -> None:
    heads = Heads(b"engine", b"", ())
    for i in range(3000):
        heads.render(b"GET", b"/", [(b"x-%d" % i, b"v")], b"")
        assert len(wire._rows) <= 1024  # clients choose names: what is remembered of them is bounded
    before = len(wire._rows)
    heads.render(b"GET", b"/", [(b"x" * 1025, b"v")], b"")
    assert len(wire._rows) == before
    for name in (b"x y", b"", b"HOST", b"Content-length"):
        for _ in range(2):
            with pytest.raises(ValueError, match=r"header name|written by"):
                heads.render(b"GET", b"/", [(b"x-1", b"v"), (name, b"v")], b"")


def test_a_percent_sign_in_a_name_or_a_value_is_only_a_sign() -> None:
    headers = [(b"x-%b", b"100 %"), (b"%", b"%d"), (b"x%%", b"")]
    for _ in range(2):
        head = Heads(b"a%b", b"", ()).render(b"GET", b"/%20", headers, b"")
        assert head == b"GET /%20 HTTP/1.1\r\nhost: a%b\r\nx-%b: 100 %\r\n%: %d\r\nx%%: \r\n\r\n"


@pytest.mark.parametrize("size", [1, 15, 16, 255, 256, 1023, 1024, 4096])
def test_exactly_one_chunk_is_known_by_its_length_and_its_ends(size: int) -> None:
    line, content = b"%x\r\n" % size, b"x" * size
    assert start_of_only_chunk(line + content + b"\r\n") == len(line)
    assert start_of_only_chunk(line.upper() + content + b"\r\n") == len(line)
    for broken in (content + b"\r", content + b"xx", content[1:] + b"\r\n", content + b"\r\n\r\n", b""):
        assert start_of_only_chunk(line + broken) == 0
    assert start_of_only_chunk(b"0" + line + content + b"\r\n") == 0
