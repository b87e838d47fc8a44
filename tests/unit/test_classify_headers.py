"""Headers: what is ambiguous is refused, what must not pass does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.classify import (
    RawHeaders,
    Refused,
    answer_headers,
    by_name,
    check_headers,
    check_json,
    downstream_headers,
    unmeasured_headers,
    upstream_headers,
)
from tidegate.classify import headers as classify_headers

PLAIN: RawHeaders = [(b"host", b"localhost"), (b"accept", b"*/*"), (b"content-length", b"12")]


@pytest.mark.parametrize(
    "headers",
    [
        [],
        PLAIN,
        [(b"host", b"a"), (b"transfer-encoding", b"chunked")],
        [(b"host", b"a"), (b"transfer-encoding", b" Chunked ")],
        [(b"content-length", b"5"), (b"content-length", b" 5")],
        [(b"x-note", b"caf\xc3\xa9\ttab")],
        [(b"x", b"")],
    ],
)
def test_sound_headers_pass(headers: RawHeaders) -> None:
    assert check_headers(headers) is None


@pytest.mark.parametrize(
    "name",
    [
        "authorization",
        "api-key",
        "x-api-key",
        "host",
        "content-type",
        "content-encoding",
        "idempotency-key",
        "x-request-id",
        "x-tidegate-band",
        "x-llm-d-inference-objective",
        "x-smg-priority",
        "x-tidegate-ttl",
        "x-llm-d-inference-ttl",
        "x-stainless-read-timeout",
        "x-tidegate-fairness-id",
        "x-gateway-inference-fairness-id",
        "x-tidegate-not-yet-known",
    ],
)
def test_what_says_one_thing_may_stand_once(name: str) -> None:
    once = (name.encode(), b"a")
    assert check_headers([*PLAIN[1:], once]) is None
    refused = check_headers([once, *PLAIN[1:], once])
    assert refused is not None
    assert (refused.param, refused.detail) == (name, f"expected one {name} header, got several")


@pytest.mark.parametrize("name", [b"accept", b"accept-language", b"cookie", b"x-tidegate-depends-on", b"x-of-others"])
def test_lists_may_stand_in_pieces_and_are_joined(name: bytes) -> None:
    headers = [(name, b"a"), *PLAIN[:1], (name, b"b, c")]
    assert check_headers(headers) is None
    assert by_name(headers) == {name: b"a, b, c", b"host": b"localhost"}


def test_equal_lengths_stay_one_number() -> None:
    assert by_name([(b"content-length", b"5"), (b"content-length", b"5")]) == {b"content-length": b"5"}


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ([(b"content-length", b"5"), (b"transfer-encoding", b"chunked")], "content-length"),
        ([(b"transfer-encoding", b"chunked"), (b"content-length", b"5")], "content-length"),
        ([(b"content-length", b"5"), (b"content-length", b"6")], "content-length"),
        ([(b"content-length", b"5, 5")], "content-length"),
        ([(b"content-length", b"+5")], "content-length"),
        ([(b"content-length", b"-5")], "content-length"),
        ([(b"content-length", b"0x5")], "content-length"),
        ([(b"content-length", b"")], "content-length"),
        ([(b"content-length", b"\xb2")], "content-length"),
        ([(b"transfer-encoding", b"gzip, chunked")], "transfer-encoding"),
        ([(b"transfer-encoding", b"xchunked")], "transfer-encoding"),
        ([(b"transfer-encoding", b"identity")], "transfer-encoding"),
        ([(b"transfer-encoding", b"chunked"), (b"transfer-encoding", b"chunked")], "transfer-encoding"),
        ([(b"host", b"a"), (b"host", b"a")], "host"),
        ([(b"x", b"a\r\nhost: b")], None),
        ([(b"x", b"a\nb")], None),
        ([(b"x", b"a\rb")], None),
        ([(b"x", b"a\0b")], None),
        ([(b"x y", b"a")], None),
        ([(b"content-length ", b"5")], None),
        ([(b"x:", b"a")], None),
        ([(b"", b"a")], None),
        ([(b"x\r\ny", b"a")], None),
    ],
)
def test_what_two_parsers_could_read_in_two_ways_is_refused(headers: RawHeaders, param: str | None) -> None:
    refused = check_headers([(b"accept", b"*/*"), *headers])
    assert isinstance(refused, Refused)
    assert refused.param == param


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ({b"content-type": b"application/json"}, None),
        ({b"content-type": b"Application/JSON; charset=utf-8", b"content-encoding": b"identity"}, None),
        ({b"content-type": b"text/plain"}, "content-type"),
        ({b"content-type": b"application/jsonx"}, "content-type"),
        ({b"content-type": b"multipart/form-data; boundary=x"}, "content-type"),
        ({}, "content-type"),
        ({b"content-type": b"application/json", b"content-encoding": b"gzip"}, "content-encoding"),
    ],
)
def test_bodies_must_be_plain_json(headers: dict[bytes, bytes], param: str | None) -> None:
    refused = check_json(headers)
    if param is None:
        assert refused is None
    else:
        assert refused is not None
        assert (refused.param, refused.status) == (param, 415)


NOT_SENT = [
    b"host",
    b"content-length",
    b"connection",
    b"keep-alive",
    b"transfer-encoding",
    b"te",
    b"trailer",
    b"upgrade",
    b"expect",
    b"proxy-authorization",
    b"authorization",
    b"api-key",
    b"x-api-key",
    b"cookie",
    b"origin",
    b"forwarded",
    b"x-forwarded-for",
    b"x-vllm-priority",
    b"x-smg-priority",
    b"x-request-priority",
    b"x-llm-d-inference-objective",
    b"x-gateway-inference-fairness-id",
    b"x-llm-d-inference-ttl",
    b"x-tidegate-band",
    b"x-tidegate-anything-new",
    b"x-request-id",
    b"x-hop",
]


def test_only_what_concerns_the_engine_goes_upstream() -> None:
    kept: RawHeaders = [
        (b"content-type", b"application/json"),
        (b"user-agent", b"OpenAI/Python"),
        (b"traceparent", b"00-1-2-01"),
        (b"idempotency-key", b"k"),
        (b"x-stainless-lang", b"python"),
    ]
    client = [*((name, b"client-secret") for name in NOT_SENT if name != b"connection"), *kept]
    client.append((b"connection", b"keep-alive, X-Hop"))
    sent = upstream_headers(client, request_id="r-1", credential="vendor-secret")
    assert sent == [
        *kept,
        (b"x-request-id", b"r-1"),
        (b"accept-encoding", b"identity"),
        (b"authorization", b"Bearer vendor-secret"),
    ]
    assert b"authorization" not in dict(upstream_headers(client, request_id="r-1"))


def test_connection_cannot_strip_what_gives_the_body_its_meaning() -> None:
    sent = upstream_headers([(b"connection", b"content-type"), (b"content-type", b"application/json")], request_id="r")
    assert (b"content-type", b"application/json") in sent


def test_only_what_concerns_the_client_comes_back() -> None:
    answer = [
        (b"Content-Type", b"text/event-stream"),
        (b"Content-Length", b"5"),
        (b"Openai-Processing-Ms", b"3"),
        (b"X-RateLimit-Remaining-Tokens", b"9"),
        (b"Set-Cookie", b"__cf_bm=secret"),
        (b"Authorization", b"Bearer vendor-secret"),
        (b"Server", b"uvicorn"),
        (b"Date", b"now"),
        (b"Retry-After", b"900"),
        (b"X-Request-Id", b"theirs"),
        (b"X-Tidegate-Band", b"p0"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Connection", b"close, x-private"),
        (b"X-Private", b"1"),
        (b"X-Engine", b"vllm"),
    ]
    assert downstream_headers(answer) == [
        (b"content-type", b"text/event-stream"),
        (b"content-length", b"5"),
        (b"x-engine", b"vllm"),
    ]


def test_every_answer_says_who_and_how_long() -> None:
    assert answer_headers(request_id="r", band="p1", queue_s=1.2345) == [
        (b"x-request-id", b"r"),
        (b"x-tidegate-band", b"p1"),
        (b"x-tidegate-queue-ms", b"1234"),
    ]


NAMES = st.sampled_from([*NOT_SENT, b"accept", b"x-a", b"x-b"]) | st.binary(max_size=12).map(bytes.lower)
HEADERS = st.lists(st.tuples(NAMES, st.binary(max_size=20)), max_size=12)


@given(HEADERS)
def test_no_secret_or_order_of_a_client_passes(headers: RawHeaders) -> None:
    sent = upstream_headers(headers, request_id="r", credential="c")
    for name, value in sent:
        if name in NOT_SENT and name != b"x-hop":
            assert (name, value) in {(b"x-request-id", b"r"), (b"authorization", b"Bearer c")}
        assert not name.startswith(b"x-tidegate-")


@given(HEADERS)
def test_what_passes_the_check_can_be_written_without_changing_its_meaning(headers: RawHeaders) -> None:
    if check_headers(headers) is None:
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        assert lines.count(b"\n") == lines.count(b"\r") == len(headers)
        names = [name for name, _ in headers]
        assert not (b"content-length" in names and b"transfer-encoding" in names)
        assert all(b":" not in name and b" " not in name and name for name in names)


@given(HEADERS)
def test_answers_keep_no_hop_by_hop_header(headers: RawHeaders) -> None:
    names = {name for name, _ in downstream_headers(headers)}
    assert names.isdisjoint({b"connection", b"transfer-encoding", b"set-cookie", b"authorization", b"keep-alive"})


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"content-length", b"2")],
        [(b"Content-Length", b"2"), (b"Content-Type", b"a"), (b"Set-Cookie", b"b")],
        [(b"connection", b"x-a, content-type"), (b"x-a", b"1"), (b"content-type", b"a"), (b"content-length", b"2")],
    ],
)
def test_the_length_can_be_left_out_of_what_comes_back(headers: RawHeaders) -> None:
    for _ in range(2):
        assert unmeasured_headers(headers) == [
            item for item in downstream_headers(headers) if item[0] != b"content-length"
        ]


def test_names_of_headers_are_remembered_within_bounds() -> None:
    for number in range(2 * classify_headers.KNOWN_ROWS):
        assert check_headers([(b"host", b"localhost"), (b"x-%d" % number, b"1")]) is None
        assert len(classify_headers._rows) <= classify_headers.KNOWN_ROWS
    before = len(classify_headers._rows)
    assert check_headers([(b"x" * (classify_headers.KNOWN_BYTES + 1), b"1")]) is None
    assert len(classify_headers._rows) == before


def test_names_in_answers_are_remembered_within_bounds() -> None:
    for number in range(2 * classify_headers.KNOWN_ROWS):
        headers = [(b"Server", b"s"), (b"X-%d" % number, b"1")]
        assert downstream_headers(headers) == downstream_headers(headers) == [(b"x-%d" % number, b"1")]
        assert len(classify_headers._answer_rows) <= classify_headers.KNOWN_ROWS
    before = len(classify_headers._answer_rows)
    assert len(downstream_headers([(b"x" * (classify_headers.KNOWN_BYTES + 1), b"1")])) == 1
    assert len(classify_headers._answer_rows) == before


def test_the_same_names_are_judged_by_their_values_each_time() -> None:
    for length, refused in ((b"5", False), (b"five", True), (b"6", False)):
        assert (check_headers([(b"host", b"localhost"), (b"content-length", length)]) is not None) is refused
    for hop, sent in ((b"keep-alive", True), (b"x-other", False), (b"close", True)):
        headers = [(b"connection", hop), (b"x-other", b"1")]
        assert ((b"x-other", b"1") in upstream_headers(headers, request_id="r")) is sent


class Compared(bytes):
    """A name that counts how often it is compared with another."""

    times = 0
    __hash__ = bytes.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return super().__eq__(other)


@pytest.mark.parametrize("different", [1, 500])
def test_names_that_stand_often_cost_no_more_for_each_of_them(different: int) -> None:
    """A head of 64 KB has room for 10,000: comparing each with each would hold the loop for seconds."""
    headers: RawHeaders = [(Compared(b"x-%d" % (number % different)), b"1") for number in range(1_000)]
    Compared.times = 0
    named = by_name(headers)
    assert check_headers(headers, named) is None
    assert named[b"x-0"] == b", ".join([b"1"] * (1_000 // different))
    assert Compared.times <= 20_000


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"host", b"content-length", b"transfer-encoding", b"x", b"a b", b""]),
            st.sampled_from([b"5", b"6", b"chunked", b"", b"a\r\nb", b"\0"]),
        ),
        max_size=5,
    )
)
def test_headers_are_judged_alike_with_their_names_at_hand(headers: RawHeaders) -> None:
    one, other = check_headers(headers, by_name(headers)), check_headers(headers)
    assert (one and (one.detail, one.param)) == (other and (other.detail, other.param))
