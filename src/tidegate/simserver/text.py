"""The text of the simulated engine: the next token is a function of all text before it.

A polynomial hash over the bytes of prompt and answer is the state, so that it does not matter where the prompt ends
and the answer begins: a prompt continued by part of its answer yields the rest of that answer, byte for byte. The
vocabulary holds English words, Chinese characters, punctuation that JSON escapes, and four-byte characters.

``tokens_of`` cuts any text into tokens such that generated text falls into exactly the tokens that made it.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

import msgspec

_MODULUS = (1 << 61) - 1
_MIX = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_CHOICE_STEP = 0x1234_5678_9ABC_DEF

_WORDS = (
    "the a of to and in is that for it as with on by at this are be from or have an they which one you were all her "
    "she there would their we him been has when who will no more if out so up said what its about than into them can "
    "only other time new some could these two may first then do any like my now over such our man me even most made "
    "after also did many off before must well back through years where much your way down should because long each "
    "just state those people too mr how little good world make very year still see own work men day get here old life "
    "both between being under three never know same last another while us might great go come since against right "
    "came take used himself few house use during without again place queue token engine request answer order model"
)
_CHINESE = (
    "的一是不了在人有我他这中大来上个国到说们为子和你地出道也时年得就那要下以生会自着去之过家学对可她里后小么心多天而能好都然没日于起"
    "请求回答模型队列"
)
_SIGNS = ",.;:!?\"\\'()-\n，。、！？「」…🙂🚀🌊🐼é"

_TOKEN = re.compile(r"\n| ?[A-Za-z]{1,8}| ?[0-9]{1,3}|[^\sA-Za-z0-9]|[^\S\n]+")


def _vocabulary() -> tuple[str, ...]:
    words = [f" {word}" for word in _WORDS.split()]
    table = [*dict.fromkeys(words), *_CHINESE, *_SIGNS]
    return tuple(table[index % len(table)] for index in range(256))


VOCABULARY = _vocabulary()
ESCAPED = tuple(msgspec.json.encode(token)[1:-1] for token in VOCABULARY)
"""Each token as it stands inside a JSON string."""

_BYTES = tuple(token.encode() for token in VOCABULARY)
_SHIFT = tuple(256 ** len(data) % _MODULUS for data in _BYTES)
_VALUE = tuple(int.from_bytes(data, "big") for data in _BYTES)


def tokens_of(text: str) -> list[str]:
    """Cut ``text`` into tokens; nothing is lost."""
    return _TOKEN.findall(text)


def filler_text(tokens: int, seed: int = 0) -> str:
    """Text of exactly ``tokens`` tokens, for prompts of a given length."""
    draw = random.Random(seed)
    return "".join(draw.choices(VOCABULARY, k=tokens))


def state_of(text: str, choice: int = 0) -> int:
    """State after ``text``; the several answers to one prompt (``n``) differ by ``choice``."""
    value = int.from_bytes(text.encode("utf-8", "surrogatepass"), "big") % _MODULUS
    return (value + choice * _CHOICE_STEP) % _MODULUS


@dataclass(slots=True, frozen=True)
class Length:
    """How long an answer may get.

    Attributes:
        limit: most tokens (``max_tokens``, or the rest of the context).
        exact: end after that many tokens, wherever the text would end by itself.
        minimum: tokens before which the text does not end by itself.
    """

    limit: int
    exact: int | None = None
    minimum: int = 1


class Writer:
    """Writes answers: deterministic in the seed, the prompt and the position."""

    def __init__(self, *, seed: int = 0, mean_tokens: float = 200.0) -> None:
        """Answers end by themselves after ``mean_tokens`` on average, geometrically distributed.

        Only a memoryless length lets a continued answer end where the whole one would have.
        """
        self._seed = (seed * _MIX + seed) & _MASK
        self._end_below = int((1 << 24) / max(1.0, mean_tokens))

    def write(self, state: int, length: Length) -> tuple[list[int], bool]:
        """Return the numbers of the tokens after ``state``, and whether the text ended by itself."""
        seed, end_below = self._seed, self._end_below
        most = length.limit if length.exact is None else min(length.limit, length.exact)
        minimum = length.minimum if length.exact is None else most
        written: list[int] = []
        while len(written) < most:
            mixed = ((state ^ seed) * _MIX) & _MASK
            mixed ^= mixed >> 29
            mixed = (mixed * _MIX) & _MASK
            if (mixed >> 16) & 0xFFFFFF < end_below and len(written) >= minimum:
                return written, True
            token = mixed >> 56
            written.append(token)
            state = (state * _SHIFT[token] + _VALUE[token]) % _MODULUS
        return written, length.exact is not None and length.exact <= length.limit


def unit_keys(tokens: list[str], unit_tokens: int = 16) -> list[int]:
    """Keys of the prefix-cache units of a token list: equal as far as two lists agree from the start."""
    keys: list[int] = []
    key = 0
    for start in range(0, len(tokens) - unit_tokens + 1, unit_tokens):
        key = hash((key, "\0".join(tokens[start : start + unit_tokens])))
        keys.append(key)
    return keys
