"""What of a request matters for going on with its answer: whether it can be done faithfully, and with which body.

Whether it can is known in advance, by one pure function. The body of a continuation is the client's own with the text
that it has already: chat gets it as the last message of the assistant with ``continue_final_message``, completions
behind the prompt. Messages are never decoded; the top level is written anew from raw values.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import Raw

ABSENT = Raw()
NULL = (b"", b"null", b"false", b"[]", b"{}", b'""')


class Obstacle(StrEnum):
    """Why an answer cannot go on after it was stopped."""

    FORBIDDEN = "forbidden"  # the client said x-tidegate-resume: never
    ENGINE = "engine"  # the engine cannot continue a text
    ROUTE = "route"  # neither chat nor completions, or a body of another form
    CHOICES = "choices"  # n, best_of: several answers
    LOGPROBS = "logprobs"
    STRUCTURED = "structured"  # a grammar would begin anew
    SEED = "seed"  # the chance of the rest would be another
    PENALTY = "penalty"  # counts the answer's own tokens, which would be the prompt's
    STORE = "store"
    TOOLS = "tools"  # a call of a tool has begun, or will begin for sure
    REASONING = "reasoning"  # templates leave it out of what was said before
    ECHO = "echo"  # echo, suffix
    PROMPT = "prompt"  # no plain text, or cut by the engine
    CONTINUED = "continued"  # continues a message of the client's already
    SHAPE = "shape"  # events that are not understood
    SIZE = "size"


class _Message(msgspec.Struct):
    role: str = ""


class _Body(msgspec.Struct):
    """The fields that decide something; all else stays as it came."""

    messages: Raw = ABSENT
    prompt: Raw = ABSENT
    stream: bool | None = None
    stream_options: Raw = ABSENT
    stop: Raw = ABSENT
    n: int | None = None
    best_of: int | None = None
    use_beam_search: Raw = ABSENT
    logprobs: Raw = ABSENT
    top_logprobs: Raw = ABSENT
    prompt_logprobs: Raw = ABSENT
    response_format: Raw = ABSENT
    structured_outputs: Raw = ABSENT
    guided_json: Raw = ABSENT
    guided_regex: Raw = ABSENT
    guided_choice: Raw = ABSENT
    guided_grammar: Raw = ABSENT
    json_schema: Raw = ABSENT
    regex: Raw = ABSENT
    ebnf: Raw = ABSENT
    grammar: Raw = ABSENT
    structural_tag: Raw = ABSENT
    seed: Raw = ABSENT
    presence_penalty: Raw = ABSENT
    frequency_penalty: Raw = ABSENT
    store: Raw = ABSENT
    tools: Raw = ABSENT
    tool_choice: Raw = ABSENT
    functions: Raw = ABSENT
    function_call: Raw = ABSENT
    modalities: Raw = ABSENT
    audio: Raw = ABSENT
    echo: Raw = ABSENT
    suffix: Raw = ABSENT
    truncate_prompt_tokens: Raw = ABSENT
    continue_final_message: Raw = ABSENT
    return_token_ids: Raw = ABSENT
    max_tokens: int | float | None = None
    max_completion_tokens: int | float | None = None
    n_predict: int | float | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


_GIVEN: tuple[tuple[str, Obstacle], ...] = (
    *((name, Obstacle.LOGPROBS) for name in ("logprobs", "top_logprobs", "prompt_logprobs", "return_token_ids")),
    *((name, Obstacle.STRUCTURED) for name in ("structured_outputs", "guided_json", "guided_regex", "guided_choice")),
    *((name, Obstacle.STRUCTURED) for name in ("guided_grammar", "json_schema", "regex", "ebnf", "grammar")),
    *((name, Obstacle.STRUCTURED) for name in ("structural_tag", "audio")),
    *((name, Obstacle.SEED) for name in ("seed",)),
    *((name, Obstacle.STORE) for name in ("store",)),
    *((name, Obstacle.ECHO) for name in ("echo", "suffix")),
    *((name, Obstacle.PROMPT) for name in ("truncate_prompt_tokens",)),
    *((name, Obstacle.CHOICES) for name in ("use_beam_search",)),
    *((name, Obstacle.CONTINUED) for name in ("continue_final_message",)),
)
_FREE_CHOICE = (b'"auto"', b'"none"')
_ZERO = (b"0", b"0.0")
_TEXT_FORM = (b'{"type":"text"}',)
_TEXT_ONLY = (b'["text"]',)
LIMITS = ("max_tokens", "max_completion_tokens", "n_predict")

_bodies = msgspec.json.Decoder(_Body)
_roles = msgspec.json.Decoder(list[_Message])
_options = msgspec.json.Decoder(_StreamOptions | None)
_stops = msgspec.json.Decoder(str | list[str] | None)
_fields = msgspec.json.Decoder(dict[str, Raw])


class Wish(msgspec.Struct, frozen=True):
    """What the client wants to get.

    Attributes:
        chat: the form of the answer, else that of completions.
        stream: whether it wants events.
        usage: whether it wants an event with the usage at the end.
        every_usage: whether it wants the usage in every event.
        stops: texts that end the answer.
        limit: most tokens of the answer, ``None`` without a limit.
    """

    chat: bool
    stream: bool
    usage: bool = False
    every_usage: bool = False
    stops: tuple[str, ...] = ()
    limit: int | None = None


def read_wish(raw: bytes, *, chat: bool) -> tuple[Wish, Obstacle | None]:
    """Read a body once; return what is wanted, and what stands in the way of going on with its answer.

    Args:
        raw: the JSON body of the request.
        chat: it came to the chat route, else to completions.
    """
    try:
        body = _bodies.decode(raw)
        options = _options.decode(body.stream_options or b"null") or _StreamOptions()
        stops = _stops.decode(body.stop or b"null")
        obstacle = _obstacle(body, chat=chat)
    except (msgspec.MsgspecError, RecursionError):  # the engine will have something to say to it
        return Wish(chat=chat, stream=False), Obstacle.ROUTE
    limits = [value for name in LIMITS if (value := getattr(body, name)) is not None and value >= 0]
    return Wish(
        chat=chat,
        stream=body.stream is True,
        usage=options.include_usage is True,
        every_usage=options.continuous_usage_stats is True,
        stops=tuple(stop for stop in ([stops] if isinstance(stops, str) else stops or ()) if stop),
        limit=int(min(limits)) if limits else None,
    ), obstacle


def obstacle_of(raw: bytes, *, chat: bool, engine: bool = True, forbidden: bool = False) -> Obstacle | None:
    """Say why the answer to a request cannot go on faithfully once it was stopped; ``None``: it can.

    Args:
        raw: the JSON body of the request.
        chat: it came to the chat route, else to completions.
        engine: whether the engine can continue a text.
        forbidden: whether the client forbids it (``x-tidegate-resume: never``).
    """
    if forbidden:
        return Obstacle.FORBIDDEN
    return read_wish(raw, chat=chat)[1] if engine else Obstacle.ENGINE


def continued(body: bytes, wish: Wish, *, text: str, tokens: int | None, told: bool) -> bytes:
    """Return the body that asks for the rest of an answer.

    Args:
        body: what was sent for the first leg.
        wish: what was wanted.
        text: what the client has of the answer.
        tokens: how many tokens that is; ``None``: nothing but the usage is missing.
        told: the engine tells the usage in every event when asked.
    """
    fields = _fields.decode(body)
    if text:
        said = msgspec.json.encode(text)
        if wish.chat:
            before = bytes(fields["messages"]).rstrip()[:-1]
            fields["messages"] = Raw(before + b',{"role":"assistant","content":' + said + b"}]")
            fields["continue_final_message"], fields["add_generation_prompt"] = Raw(b"true"), Raw(b"false")
        else:
            fields["prompt"] = Raw(bytes(fields["prompt"]).rstrip()[:-1] + said[1:])
    for name in (*LIMITS, "min_tokens"):
        if bytes(fields.get(name, ABSENT)) not in NULL:
            least = 0 if name == "min_tokens" else 1
            left = least if tokens is None else int(msgspec.json.decode(fields[name], type=float)) - tokens
            fields[name] = Raw(b"%d" % max(left, least))
    if tokens is None and not any(name in fields for name in LIMITS):
        fields["max_tokens"] = Raw(b"1")
    _streamed(fields, told=told)
    return msgspec.json.encode(fields)


def streamed(body: bytes, *, told: bool) -> bytes:
    """Return the body that asks for a stream in place of a whole answer; ``told`` as in ``continued``."""
    fields = _fields.decode(body)
    _streamed(fields, told=told)
    return msgspec.json.encode(fields)


def _streamed(fields: dict[str, Raw], *, told: bool) -> None:
    fields["stream"] = Raw(b"true")
    options = fields.get("stream_options", ABSENT)
    asked = _fields.decode(options) if bytes(options) not in NULL else {}
    asked["include_usage"] = Raw(b"true")
    if told:
        asked["continuous_usage_stats"] = Raw(b"true")
    fields["stream_options"] = Raw(msgspec.json.encode(asked))


def _obstacle(body: _Body, *, chat: bool) -> Obstacle | None:
    if (body.n or 1) > 1 or (body.best_of or 1) > 1:
        return Obstacle.CHOICES
    if bytes(body.response_format) not in NULL and _squeezed(body.response_format) not in _TEXT_FORM:
        return Obstacle.STRUCTURED
    if bytes(body.modalities) not in NULL and _squeezed(body.modalities) not in _TEXT_ONLY:
        return Obstacle.STRUCTURED
    for name, obstacle in _GIVEN:
        value = getattr(body, name)
        if value and bytes(value) not in NULL:  # nearly all are absent
            return obstacle
    for penalty in (body.presence_penalty, body.frequency_penalty):
        if bytes(penalty) not in (*NULL, *_ZERO):
            return Obstacle.PENALTY
    if _calls_tools(body):
        return Obstacle.TOOLS
    return _prompt_obstacle(body, chat=chat)


def _calls_tools(body: _Body) -> bool:
    """Say whether a tool will be called for sure, or might in an answer that is not streamed.

    Engines read calls out of a whole answer in another way than out of a stream, so such an answer stays whole.
    """
    forced = any(bytes(each) not in (*NULL, *_FREE_CHOICE) for each in (body.tool_choice, body.function_call))
    offered = bytes(body.tools) not in NULL or bytes(body.functions) not in NULL
    return forced or (offered and body.stream is not True)


def _prompt_obstacle(body: _Body, *, chat: bool) -> Obstacle | None:
    if not chat:
        return None if bytes(body.prompt)[:1] == b'"' and len(body.prompt) > 2 else Obstacle.PROMPT
    messages = _roles.decode(body.messages or b"[]")
    if not messages:
        return Obstacle.PROMPT
    return Obstacle.CONTINUED if messages[-1].role == "assistant" else None


def _squeezed(raw: Raw) -> bytes:
    return b"".join(bytes(raw).split())
