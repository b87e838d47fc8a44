"""Whatever the legs, chunks and seams: the client gets the answer that it would have got without them, once."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from properties.legs import PROMPT, Engine, Got, read
from tidegate.splice import Splice, read_wish

TOKENS = st.lists(
    st.sampled_from(["a", " b", "ab", "\n", "é", "🙂", "", '"', "\\", " ", "data: ", "\n\n", "中", "error", "abort"]),
    min_size=1,
    max_size=14,
)
STOPS = st.lists(st.sampled_from(["ab", "b\n", "🙂é", "aab", "\n\n", "zz"]), max_size=2)
CUTS = st.lists(st.floats(0, 1), max_size=5)
SIZES = st.lists(st.integers(1, 400), min_size=1, max_size=6)


def request(*, chat: bool, stream: bool, usage: bool, every: bool, stops: list[str], limit: int | None) -> bytes:
    asks: dict[str, Any] = {"model": "m"}
    asks |= {"messages": [{"role": "user", "content": "say"}]} if chat else {"prompt": "say: "}
    asks |= {"stream": True} if stream else {}
    if stream and (usage or every):
        asks["stream_options"] = {"include_usage": usage, "continuous_usage_stats": every}
    asks |= {"stop": stops} if stops else {}
    asks |= {"max_tokens": limit} if limit is not None else {}
    return json.dumps(asks).encode()


def go_through(engine: Engine, body: bytes, *, chat: bool, cuts: list[float], sizes: list[int]) -> tuple[bytes, Splice]:
    """Feed leg after leg, each cut at a part of its bytes, the last one whole; return what the client gets."""
    wish, obstacle = read_wish(body, chat=chat)
    assert obstacle is None
    splice = Splice(wish, told=engine.every)
    out = []
    for number, part in enumerate([*cuts, None]):
        leg = engine.answer(splice.body(body), chat=chat, number=number)
        end = len(leg) if part is None else int(part * len(leg))
        at, turn = 0, 0
        while at < end:
            piece = leg[at : min(end, at + sizes[turn % len(sizes)])]
            out.append(take(splice, piece))
            at, turn = at + len(piece), turn + 1
        assert not splice.failed
        if splice.complete:
            out.append(splice.close())
            break
        assert part is not None, "the last leg did not complete the answer"
        assert splice.obstacle is None
        splice.cut()
    return b"".join(out), splice


@settings(max_examples=400, deadline=None)
@given(
    tokens=TOKENS, stops=STOPS, cuts=CUTS, sizes=SIZES, limit=st.none() | st.integers(1, 14), chat=st.booleans(),
    stream=st.booleans(), usage=st.booleans(), told=st.booleans(), crlf=st.booleans(), comments=st.booleans(),
    apart=st.booleans(),
)  # fmt: skip
def test_an_answer_of_many_legs_is_the_answer_of_one(
    *, tokens: list[str], stops: list[str], cuts: list[float], sizes: list[int], limit: int | None, chat: bool,
    stream: bool, usage: bool, told: bool, crlf: bool, comments: bool, apart: bool,
) -> None:  # fmt: skip
    body = request(chat=chat, stream=stream, usage=usage, every=False, stops=stops, limit=limit)
    engine = Engine(tokens, crlf=crlf, comments=comments, apart=apart, every=told)
    plain, one = go_through(engine, body, chat=chat, cuts=[], sizes=[10_000])
    joined, splice = go_through(engine, body, chat=chat, cuts=cuts, sizes=sizes)
    if not stream:
        assert joined == b""
        whole, expected = json.loads(splice.whole()), json.loads(one.whole())
        assert whole["choices"] == expected["choices"]
        assert _counts(whole["usage"]) == _counts(expected["usage"])
        return
    got, expected_got = read(joined), read(plain)
    assert got.text == expected_got.text
    assert got.reasons == expected_got.reasons
    assert len(got.reasons) == 1
    assert (got.roles, got.ends, got.after_end) == (int(chat), 1, 0)
    assert len(got.ids) == 1
    assert _sums(got) == _sums(expected_got)
    assert len(got.usages) == int(usage)


def take(splice: Splice, piece: bytes) -> bytes:
    """Give a splice a piece in the quick way where there is one, as the gateway does."""
    if not splice.passes(piece):
        return splice.feed(piece)
    splice.keep(piece)
    return piece if splice.wish.stream else b""


def _sums(got: Got) -> list[tuple[int, int, int]]:
    return [_counts(usage) for usage in got.usages]


def _counts(usage: dict[str, int]) -> tuple[int, int, int]:
    return usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]


@settings(max_examples=100, deadline=None)
@given(tokens=TOKENS, sizes=SIZES, crlf=st.booleans(), comments=st.booleans(), apart=st.booleans(), usage=st.booleans())
def test_an_answer_that_is_not_cut_passes_byte_for_byte(
    *, tokens: list[str], sizes: list[int], crlf: bool, comments: bool, apart: bool, usage: bool
) -> None:
    body = request(chat=True, stream=True, usage=usage, every=False, stops=[], limit=None)
    engine = Engine(tokens, crlf=crlf, comments=comments, apart=apart)
    assert go_through(engine, body, chat=True, cuts=[], sizes=sizes)[0] == engine.answer(body, chat=True, number=0)


@settings(max_examples=100, deadline=None)
@given(tokens=TOKENS, part=st.floats(0, 1), sizes=SIZES)
def test_a_leg_that_fails_shows_nothing_of_it_and_goes_on(tokens: list[str], part: float, sizes: list[int]) -> None:
    body = request(chat=True, stream=True, usage=True, every=False, stops=[], limit=None)
    engine = Engine(tokens)
    wish, _ = read_wish(body, chat=True)
    splice = Splice(wish)
    events = engine.answer(splice.body(body), chat=True, number=0).split(b"\n\n")
    kept = events[: int(part * (len(events) - 3))]
    failing = b"\n\n".join(
        [*kept, b'data: {"error": {"code": 500, "message": "the engine died"}}', b"data: [DONE]", b""]
    )
    out, at, turn = [], 0, 0
    while at < len(failing):
        piece = failing[at : at + sizes[turn % len(sizes)]]
        out.append(take(splice, piece))
        at, turn = at + len(piece), turn + 1
    assert splice.failed
    splice.cut()
    out.append(splice.feed(engine.answer(splice.body(body), chat=True, number=1)))
    assert splice.complete
    got = read(b"".join([*out, splice.close()]))
    assert got.text == "".join(tokens)
    assert (got.reasons, got.roles, got.ends) == (["stop"], 1, 1)
    assert _sums(got) == [(PROMPT, len(tokens), PROMPT + len(tokens))]
