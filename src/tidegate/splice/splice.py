"""One answer out of several legs: bytes of event streams in, bytes for the client out. Sans-I/O.

The first leg passes as it comes. Only its whole events do, so that the client never holds half of one when the leg is
cut; they are kept as they are and read when the leg is cut, or when they are many. The events of later legs are read
and written anew, with the identity of the first one.

Invariants, whatever legs and cuts: the text that the client gets is that of the legs in order, nothing twice and
nothing left out; one role, one end, one usage where it was asked for, one ``[DONE]``; an event that tells of a failure
never goes out.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from tidegate.splice.account import Account
from tidegate.splice.events import ABSENT, DONE, Choice, Chunk, cut, payload_of, read_chunk, tells_failure
from tidegate.splice.request import Obstacle, Wish, continued, streamed
from tidegate.splice.seam import Seam

MOST_KEPT = 128 * 1024
"""Bytes of events kept unread."""

MOST_HELD = 1024 * 1024
"""Longest event whose end is waited for."""

MOST_TEXT = 8 * 1024 * 1024
"""Longest answer, in characters, that can go on."""

_fields = msgspec.json.Decoder(dict[str, Raw])
_choices = msgspec.json.Decoder(list[dict[str, Raw]])
_END = b"data: [DONE]\n\n"


class Splice:
    """Joins the legs of one answer.

    Attributes:
        wish: what the client wants.
        obstacle: why the answer cannot go on after a cut; ``None``: it can.
        failed: the engine told, in an event that was withheld, that this leg will not be finished.
        finished: why the answer ended, once its client was told.
        done: the client has the end of the stream.
        legs: how many began.
    """

    __slots__ = (
        "_account", "_head", "_kept", "_kept_size", "_plain", "_reasoning", "_role", "_seam", "_size", "_spent",
        "_stop_reason", "_tail", "_texts", "_told", "_usage", "_usage_sent", "done", "failed", "finished", "legs",
        "obstacle", "wish",
    )  # fmt: skip

    def __init__(self, wish: Wish, *, told: bool = False) -> None:
        """Begin before the first leg.

        Args:
            wish: what the client wants.
            told: the engine tells the usage in every event when asked (``continuous_usage_stats``).
        """
        self.wish = wish
        self.obstacle: Obstacle | None = None
        self.failed = self.done = False
        self.finished: str | None = None
        self.legs = 1
        self._told = told
        self._account = Account()
        self._head: dict[str, Raw] = {}
        self._plain = True  # the events of this leg pass as they are
        self._kept: list[bytes] = []
        self._kept_size = 0
        self._tail = b""
        self._texts: list[str] = []
        self._size = 0
        self._role = self._usage_sent = self._spent = False
        self._seam: Seam | None = None
        self._reasoning: dict[str, list[str]] = {}
        self._stop_reason = ABSENT
        self._usage = ABSENT  # of a single leg, as the engine told it

    # What the gateway drives.

    def body(self, body: bytes) -> bytes:
        """Return what to send for the leg that begins, given what the request alone would send."""
        if self.legs > 1:
            if self._account.total is not None:  # it is at its end, only its usage is wanted
                return continued(body, self.wish, text="", tokens=None, told=self._told)
            text = "".join(self._texts)
            return continued(body, self.wish, text=text, tokens=self._account.base, told=self._told)
        return body if self.wish.stream else streamed(body, told=self._told)

    def passes(self, piece: bytes) -> bool:
        """Say whether a piece of the first leg goes out as it is; then ``keep`` it. Otherwise ``feed`` it."""
        if not self._plain or self._tail or self.failed or not piece.endswith((b"\n\n", b"\r\n\r\n")):
            return False
        # ``find``, since ``in`` with bytes raises and catches an error inside CPython
        return self._kept_size <= MOST_KEPT and piece.find(b"error") < 0 and piece.find(b'"abort"') < 0

    def keep(self, piece: bytes) -> None:
        """Take in a piece that ``passes``."""
        self._kept.append(piece)
        self._kept_size += len(piece)

    def feed(self, piece: bytes) -> bytes:
        """Take a piece of the present leg; return what goes out of it now."""
        if self.failed:
            return b""
        events, self._tail = cut(self._tail + piece if self._tail else piece)
        if len(self._tail) > MOST_HELD:
            self.obstacle = self.obstacle or Obstacle.SIZE
            events.append(self._tail)
            self._tail = b""
        out = []
        for event in events:
            if (b"error" in event or b"abort" in event) and tells_failure(event):
                self.failed = True
                break
            if self._plain:
                self._kept.append(event)
                self._kept_size += len(event)
            out.append(event if self._plain else self._rejoin(event))
        if self._kept_size > MOST_KEPT:
            self._read_kept()
        return b"".join(out) if self.wish.stream else b""

    def cut(self) -> None:
        """The present leg has ended, wherever it was; the next one may begin unless there is an ``obstacle``."""
        self._read_kept()
        limit, account = self.wish.limit, self._account
        self._spent = self.finished is None and limit is not None and account.tokens >= limit
        if self._spent:
            account.pending = 0
        if account.total is None and (self._spent or self.finished is not None):
            account.end()
        account.cut()
        self._tail = b""
        self.failed = self._plain = False
        self.legs += 1
        longest = max((len(stop) for stop in self.wish.stops), default=0)  # and no piece is empty
        self._seam = Seam("".join(self._texts[-longest:]), self.wish.stops) if longest else None

    @property
    def complete(self) -> bool:
        """Whether the client, or ``whole``, has all that it wants but the end of the stream. Reads what was kept."""
        self._read_kept()
        if self.finished is None:
            return False
        return self.done or self._usage_sent or not (self.wish.usage or self.wish.every_usage or not self.wish.stream)

    def rest(self) -> bytes:
        """Return what is left of a leg that has ended well: an event that waits for a line feed that never came."""
        tail = self.feed(b"\n") if self._tail.endswith(b"\r") else b""
        self._tail = b""
        return tail

    def close(self) -> bytes:
        """Return the end of a stream that is ``complete``, as far as it has not gone out."""
        rest = self.rest()
        self._read_kept()
        sent, self.done = self.done, True
        return rest if sent or not self.wish.stream else rest + _END

    def used(self) -> tuple[int | None, int]:
        """Tokens of prompt and answer over all legs, as far as known."""
        self._read_kept()
        return self._account.known_prompt, self._account.completion

    @property
    def carried(self) -> int:
        """Tokens of the answer from before the present leg."""
        return self._account.base

    @property
    def recomputed(self) -> int:
        """Prompt tokens that later legs computed again, as far as engines tell what their cache saved; else all."""
        return self._account.recomputed

    @property
    def text(self) -> str:
        """The answer so far."""
        self._read_kept()
        return "".join(self._texts)

    def whole(self) -> bytes:
        """The answer as one object, for a client that did not want a stream; ``complete`` must be true."""
        text = self.text
        choice: dict[str, Any] = {"index": 0}
        if self.wish.chat:
            reasoning = {name: "".join(parts) for name, parts in self._reasoning.items()}
            choice["message"] = {"role": "assistant", "content": text, **reasoning}
        else:
            choice["text"] = text
        choice |= {"logprobs": None, "finish_reason": self.finished}
        if self._stop_reason:
            choice["stop_reason"] = self._stop_reason
        kind = "chat.completion" if self.wish.chat else "text_completion"
        head = {"id": self._head.get("id", ""), "object": kind, **self._head}
        usage = self._usage if self.legs == 1 and self._usage else self._account.usage()
        return msgspec.json.encode({**head, "choices": [choice], "usage": usage})

    # The first leg.

    def _read_kept(self) -> None:
        if not self._kept:
            return
        events, _ = cut(b"".join(self._kept))
        self._kept = []
        self._kept_size = 0
        for event in events:
            payload = payload_of(event)
            if payload == DONE:
                self.done = True
            elif payload is not None:
                self._read(payload)

    def _read(self, payload: bytes) -> None:
        try:
            chunk = read_chunk(payload)
        except msgspec.MsgspecError:
            self.obstacle = self.obstacle or Obstacle.SHAPE
            return
        self._account.note(chunk)
        self._take_head(chunk)
        if not chunk.choices:
            if chunk.usage is not None:
                self._usage_sent, self._usage = True, _fields.decode(payload)["usage"]
            return
        choice = chunk.choices[0]
        if choice.index or len(chunk.choices) > 1:
            self.obstacle = self.obstacle or Obstacle.CHOICES
        self._look_at(choice)
        text = _text_of(choice)
        if _is_token(choice):
            self._account.event()
        self._keep_text(text)
        self._end(choice)

    # Later legs.

    def _rejoin(self, event: bytes) -> bytes:
        """Write an event of a later leg anew; empty: nothing of it goes out."""
        payload = payload_of(event)
        if payload is None:
            return event
        if payload == DONE:
            return b"" if self.finished is None else self.close()
        try:
            chunk = read_chunk(payload)
        except msgspec.MsgspecError:
            self.obstacle, self.failed = self.obstacle or Obstacle.SHAPE, True
            return b""
        self._account.note(chunk)
        self._take_head(chunk)
        if chunk.choices:
            return self._rejoin_choice(payload, chunk)
        if chunk.usage is None or self._usage_sent:
            return b""
        self._usage_sent = True
        return self._written(payload, None, usage=True) if self.wish.usage else b""

    def _rejoin_choice(self, payload: bytes, chunk: Chunk) -> bytes:
        choice = chunk.choices[0]
        if self.finished is not None or choice.index:
            return b""
        self._look_at(choice)
        if _only_role(choice):
            sent, self._role = self._role, True
            return b"" if sent else self._written(payload, None, usage=self.wish.every_usage)
        if _is_token(choice):
            self._account.event()
        text, reason = self._at_seam(choice)
        if text:
            self._keep_text(text)
        elif reason is None and not (_is_more(choice) or _text_of(choice) == ""):
            return b""  # held back
        if reason is not None:
            self._finish(reason, choice)
        return self._written(payload, _said(choice, text, reason), usage=self.wish.every_usage)

    def _at_seam(self, choice: Choice) -> tuple[str, str | None]:
        """Return what of the text goes out, and why the answer ends here, if it does."""
        text, reason = _text_of(choice), choice.finish_reason
        if self._spent:
            return "", "length"
        if self._seam is None:
            return text, reason
        text, stopped = self._seam.pass_on(text)
        if stopped:
            self._account.end()
            return "", "stop"
        if reason is not None:
            text = self._seam.release() + text
        return text, reason

    def _written(self, payload: bytes, said: dict[str, Any] | None, *, usage: bool) -> bytes:
        """Write an event with the identity of the first leg, and with what ``said`` changes of its choice."""
        fields: dict[str, Any] = {**_fields.decode(payload), **self._head}
        if bytes(fields.get("usage", ABSENT)) not in (b"", b"null"):
            fields["usage"] = self._account.usage()
            if not usage:
                del fields["usage"]
        if said is not None:
            choice: dict[str, Any] = {**_choices.decode(fields["choices"])[0]}
            if "delta" in said:
                delta = {**_fields.decode(choice["delta"]), **said["delta"]}
                said["delta"] = {name: value for name, value in delta.items() if name != "role" or not self._role}
            fields["choices"] = [choice | said]
        return b"data: " + msgspec.json.encode(fields) + b"\n\n"

    # Both.

    def _take_head(self, chunk: Chunk) -> None:
        if not self._head and chunk.id:
            head = {"id": Raw(msgspec.json.encode(chunk.id)), "created": chunk.created, "model": chunk.model}
            head["system_fingerprint"] = chunk.system_fingerprint
            self._head = {name: value for name, value in head.items() if value}

    def _look_at(self, choice: Choice) -> None:
        """Notice what cannot go on, and what only a whole answer needs to be told."""
        delta = choice.delta
        if delta is None:
            return
        if self._plain:
            self._role = self._role or delta.role is not None
        if bytes(delta.tool_calls) not in (b"", b"null", b"[]") or bytes(delta.function_call) not in (b"", b"null"):
            self.obstacle = self.obstacle or Obstacle.TOOLS
        for name in ("reasoning", "reasoning_content"):
            thought = getattr(delta, name)
            if thought:
                self.obstacle = self.obstacle or Obstacle.REASONING
                if not self.wish.stream:
                    self._reasoning.setdefault(name, []).append(thought)

    def _keep_text(self, text: str) -> None:
        if text:
            self._account.text()
            self._texts.append(text)
            self._size += len(text)
            if self._size > MOST_TEXT:
                self.obstacle = self.obstacle or Obstacle.SIZE

    def _end(self, choice: Choice) -> None:
        if choice.finish_reason is not None:
            self._finish(choice.finish_reason, choice)

    def _finish(self, reason: str, choice: Choice) -> None:
        self.finished = reason
        self._stop_reason = choice.stop_reason


def _text_of(choice: Choice) -> str:
    return (choice.delta.content if choice.delta is not None else choice.text) or ""


def _only_role(choice: Choice) -> bool:
    """Say whether an event does nothing but to begin a message."""
    delta = choice.delta
    return delta is not None and delta.role is not None and not delta.content and choice.finish_reason is None


def _is_token(choice: Choice) -> bool:
    """Say whether an event stands for a token, be its text empty: one that only ends an answer has none at all."""
    delta = choice.delta
    if delta is None:
        return choice.text is not None
    return (delta.content is not None and not _only_role(choice)) or _is_more(choice)


def _is_more(choice: Choice) -> bool:
    """Say whether an event carries something beside text."""
    delta = choice.delta
    return delta is not None and bool(
        delta.tool_calls or delta.function_call or delta.reasoning or delta.reasoning_content
    )


def _said(choice: Choice, text: str, reason: str | None) -> dict[str, Any]:
    """What a rewritten choice says otherwise."""
    said = {} if text == _text_of(choice) else {"content": text}
    if choice.delta is not None:
        return {"delta": said, "finish_reason": reason}
    return {"text": text, "finish_reason": reason}
