"""Count the tokens of an answer over its legs, so that one usage comes out: the prompt once, all that was written.

What the engine tells counts. Where it does not tell (a leg that was cut), an event that may carry text is a token, as
all engines send them; those behind the last text are not counted, since the rest of the answer begins with them again.
With the usage of the last leg the sum is exact all the same: its prompt is ours and what was carried over.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.splice.events import Chunk, Usage


@dataclass(slots=True)
class Account:
    """Tokens of one answer.

    Attributes:
        tokens: of the text that the client has.
        base: of those, the ones from before this leg.
        pending: events since the last text.
        prompt: of the client's prompt, ``None`` before it is known.
        total: of the whole answer, once it is known apart from the engine's word.
        recomputed: prompt tokens of later legs that no cache saved, as far as engines tell; else all of them. The last
            token that was carried over is not among them: it had been written, but not read by any model yet.
    """

    tokens: int = 0
    base: int = 0
    pending: int = 0
    prompt: int | None = None
    total: int | None = None
    recomputed: int = 0
    _again: bool = False
    _told: int | None = None
    _usage: Usage | None = None

    def note(self, chunk: Chunk) -> None:
        """Take in the usage of an event, if it has one."""
        usage = chunk.usage
        if usage is None:
            return
        if usage.prompt_tokens is not None and self._usage is None and self._again:
            cached = usage.prompt_tokens_details
            saved = cached.cached_tokens or 0 if cached is not None else 0
            self.recomputed += max(0, usage.prompt_tokens - saved - (self.base > 0))
        self._usage = usage
        if usage.prompt_tokens is not None and self.prompt is None and not self.base:
            self.prompt = usage.prompt_tokens
        if chunk.choices and usage.completion_tokens is not None:
            self._told = self.base + usage.completion_tokens

    def event(self) -> None:
        """Count an event that may carry text."""
        self.pending += 1

    def text(self) -> None:
        """Note that it did, and that the client has it."""
        self.tokens = self.tokens + self.pending if self._told is None else self._told
        self.pending = 0

    def end(self) -> None:
        """The answer is at its end here, whatever the engine goes on to write."""
        self.total = self.tokens + self.pending

    def cut(self) -> None:
        """The leg is over. What is at its end needs no text carried over, only the prompt's tokens."""
        self.base, self.pending, self._again = self.tokens if self.total is None else 0, 0, True
        self._told = self._usage = None

    @property
    def completion(self) -> int:
        """Tokens written in all."""
        if self.total is not None:
            return self.total
        if self._usage is not None and self._usage.completion_tokens is not None:
            return self.base + self._usage.completion_tokens
        return self.tokens + self.pending

    @property
    def known_prompt(self) -> int | None:
        """Tokens of the client's prompt; ``None`` when no engine has told."""
        if self.prompt is not None or self._usage is None or self._usage.prompt_tokens is None:
            return self.prompt
        return max(0, self._usage.prompt_tokens - self.base)

    def usage(self) -> dict[str, int]:
        """The ``usage`` of the whole answer. Where no engine told of the prompt, it counts as nothing."""
        prompt, completion = self.known_prompt or 0, self.completion
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
