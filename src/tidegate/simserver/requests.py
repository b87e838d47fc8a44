"""What a client may ask of the simulated engine, and how its prompt is read. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tidegate.simserver.text import tokens_of


class Refused(Exception):  # noqa: N818  (an answer, not a fault)
    """The request is answered with an error in the form that vLLM uses."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.param = param


def bad_request(message: str, param: str | None = None) -> Refused:
    """A 400."""
    return Refused(400, "BadRequestError", message, param)


def error_body(status: int, kind: str, message: str, param: str | None = None) -> bytes:
    """The JSON body of an error."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": status}})


class StreamOptions(msgspec.Struct):
    """``stream_options``."""

    include_usage: bool = False


class Message(msgspec.Struct):
    """One chat message; content is text or a list of parts."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None

    def text(self) -> str:
        """Everything the message says, as one text."""
        if isinstance(self.content, str):
            said = self.content
        else:
            said = "".join(str(part.get("text", "")) for part in self.content or ())
        calls = "".join(msgspec.json.encode(call).decode() for call in self.tool_calls or ())
        return said + calls


class GenerateRequest(msgspec.Struct, kw_only=True):
    """Body of both endpoints; unknown fields are ignored."""

    model: str | None = None
    messages: list[Message] | None = None
    prompt: str | list[Any] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    n: int | None = 1
    stop: str | list[str] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    priority: int = 0
    metadata: dict[str, Any] | None = None
    tidegate_output_tokens: int | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False


_decoder = msgspec.json.Decoder(GenerateRequest)


def read_request(body: bytes, headers: Mapping[bytes, bytes]) -> GenerateRequest:
    """Parse and check a body; the priority header overrides the field.

    Raises:
        Refused: 400, with the field at fault in the message.
    """
    try:
        request = _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise bad_request(str(error)) from None
    for name in ("max_tokens", "max_completion_tokens"):
        value = getattr(request, name)
        if value is not None and value < 1:
            raise bad_request(f"{name} must be at least 1, got {value}.", name)
    if request.n is not None and not 1 <= request.n <= 128:
        raise bad_request(f"n must be from 1 to 128, got {request.n}.", "n")
    if request.continue_final_message and request.add_generation_prompt:
        raise bad_request("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
    header = headers.get(b"x-vllm-priority")
    if header is not None:
        try:
            request.priority = int(header)
        except ValueError:
            raise bad_request("X-Vllm-Priority must be an integer.", "priority") from None
    return request


def wanted_output(request: GenerateRequest) -> int | None:
    """How many tokens the request asks the simulated engine to write, if it says so."""
    value = request.tidegate_output_tokens
    if value is None and request.metadata:
        value = request.metadata.get("tidegate_output_tokens")
    if value is None:
        return None
    try:
        wanted = int(value)
    except (TypeError, ValueError):
        raise bad_request(f"tidegate_output_tokens must be an integer, got {value!r}.") from None
    if wanted < 1:
        raise bad_request(f"tidegate_output_tokens must be at least 1, got {wanted}.")
    return wanted


def chat_prompt(request: GenerateRequest) -> tuple[str, int]:
    """Render the messages; also return how many tokens of the last answer are given to be continued."""
    messages = request.messages
    if not messages:
        raise bad_request("messages must not be empty.", "messages")
    if not request.continue_final_message:
        tail = "<|assistant|>\n" if request.add_generation_prompt else ""
        return "".join(f"<|{message.role}|>\n{message.text()}\n" for message in messages) + tail, 0
    if messages[-1].role != "assistant":
        raise bad_request("continue_final_message needs an assistant message at the end.", "messages")
    partial = messages[-1].text()
    before = "".join(f"<|{message.role}|>\n{message.text()}\n" for message in messages[:-1])
    return f"{before}<|assistant|>\n{partial}", len(tokens_of(partial))


def completion_prompts(request: GenerateRequest) -> list[tuple[str, list[str]]]:
    """Each prompt as text and tokens; numbered tokens stand for themselves."""
    prompt = request.prompt
    if prompt is None or prompt == "" or prompt == []:
        raise bad_request("prompt must not be empty.", "prompt")
    if isinstance(prompt, str):
        return [(prompt, tokens_of(prompt))]
    several = [prompt] if isinstance(prompt[0], int) else prompt
    return [_one_prompt(one) for one in several]


def _one_prompt(prompt: Any) -> tuple[str, list[str]]:
    if isinstance(prompt, str):
        tokens = tokens_of(prompt)
    elif isinstance(prompt, list) and all(type(token) is int for token in prompt):
        tokens = [f" {token}" for token in prompt]
    else:
        raise bad_request("prompt must be text, token numbers, or a list of one of these.", "prompt")
    if not tokens:
        raise bad_request("prompt must not be empty.", "prompt")
    return "".join(tokens), tokens
