"""Guess the work of a request before it runs, and learn from what it really was (SPEC §4.5).

Input: the body's bytes give a first count, one token per four ASCII bytes and one per CJK character (three bytes in
UTF-8), embedded base64 data nearly none. A factor, learned per tenant and model as a decayed ratio of sums of actual
over first count, corrects it: a ratio of sums is not thrown off by many tiny requests as a mean of ratios would be.

Output: quantiles of a decayed histogram with logarithmic buckets (four to the octave, so within 9 % of the value)
per tenant, model and band; without samples of its own a request takes those of the model and band.

Invariants: tables are bounded; the same calls in the same order give the same estimates; estimates order and budget
and never change an answer.

What is made for every request is a ``msgspec.Struct``: it costs a third of a dataclass to make and, without
cycles, needs no place in the garbage collector's lists.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate
from typing import Protocol, TypeVar

import msgspec

from tidegate.classify.body import ParsedBody
from tidegate.classify.route import Route
from tidegate.core import WorkEstimate

ASCII_BYTES_PER_TOKEN = 4.0
CJK_BYTES_PER_TOKEN = 3.0
EMBEDDED_BYTES_PER_TOKEN = 400.0
"""An image of 400 kB in base64 is about a thousand tokens to a vision model."""

DEFAULT_OUTPUT_TOKENS = (200, 600, 1500)
"""Output quantiles before anything is known: the conversation traces of 2023 and 2024 lie near these."""

K = TypeVar("K")
V = TypeVar("V")

_SAMPLE_ABOVE = 8192
_WINDOWS = 8
_ESCAPES_MATTER = 50
_WINDOW = 256
_DECAY = 0.99
_PRIOR_TOKENS = 500.0
_FACTOR_RANGE = (0.1, 5.0)
_BUCKETS = 96
_PER_OCTAVE = 4
_REFRESH_EVERY = 16
_QUANTILES = (0.5, 0.9, 0.99)


class EstimateRequest(msgspec.Struct, gc=False):
    """What a predictor may look at. ``limit`` is the lowest of the request's and the band's output caps."""

    tenant: str
    pool: str
    band: int
    route: Route
    raw: bytes
    body: ParsedBody
    limit: int | None = None


class Quantiles(msgspec.Struct, gc=False):
    """A prediction in tokens: input, and quantiles of the whole output (all choices).

    ``memo`` is the predictor's own: what ``learn`` needs of the request, so that nobody keeps its body for that.
    """

    input_tokens: int
    output_p50: int
    output_p90: int
    output_p99: int
    memo: object = None

    @property
    def work(self) -> WorkEstimate:
        """The estimate that orders and budgets: the median output."""
        return WorkEstimate(self.input_tokens, self.output_p50)


class Errors(msgspec.Struct, gc=False):
    """Relative errors, (predicted - actual) / actual, of input and median output; ``None`` where nothing was told."""

    input: float | None
    output: float | None


class Predictor(Protocol):
    """Predicts a request's work. MUST be deterministic, quick (it runs on every arrival) and MUST NOT raise."""

    def predict(self, request: EstimateRequest) -> Quantiles:
        """Return the prediction for one request."""
        ...

    def learn(self, predicted: Quantiles, *, input_tokens: int | None, output_tokens: int | None) -> Errors:
        """Take in what the request really used; ``None`` for what the engine did not tell."""
        ...


class _Memo(msgspec.Struct, gc=False):
    tenant: str
    pool: str
    band: int
    first_count: float
    choices: int
    generates: bool


class LearnedPredictor:
    """The default predictor: a learned factor for the input, learned quantiles for the output."""

    def __init__(self, max_rows: int = 4096) -> None:
        self._factors: _Table[tuple[str, str], _Factor] = _Table(_Factor, max_rows)
        self._outputs: _Table[tuple[str, str, int], _Outputs] = _Table(_Outputs, max_rows)

    def predict(self, request: EstimateRequest) -> Quantiles:
        """Return the prediction for one request. Costs a few dictionary look-ups."""
        count = first_count(request.raw)
        tenant, pool, band = request.tenant, request.pool, request.band
        factor = self._factors.get((tenant, pool))
        tokens = max(1, round(count * factor.value if factor is not None else count))
        choices = _choices(request.body)
        generates = _generates(request)
        memo = _Memo(tenant, pool, band, count, choices, generates)
        if not generates:
            return Quantiles(tokens, 0, 0, 0, memo)
        outputs = self._outputs.get((tenant, pool, band)) or self._outputs.get(("", pool, band))
        p50, p90, p99 = outputs.quantiles if outputs is not None else DEFAULT_OUTPUT_TOKENS
        limit = request.limit
        if limit is not None:
            p50, p90, p99 = min(p50, limit), min(p90, limit), min(p99, limit)
        return Quantiles(tokens, p50 * choices, p90 * choices, p99 * choices, memo)

    def learn(self, predicted: Quantiles, *, input_tokens: int | None, output_tokens: int | None) -> Errors:
        """Take in what the request really used, and return how wrong the prediction was."""
        memo = predicted.memo
        if isinstance(memo, _Memo):
            if input_tokens is not None and memo.first_count > 0:
                self._factors.touch((memo.tenant, memo.pool)).add(memo.first_count, input_tokens)
            if output_tokens is not None and memo.generates:
                each = output_tokens // memo.choices
                self._outputs.touch((memo.tenant, memo.pool, memo.band)).add(each)
                self._outputs.touch(("", memo.pool, memo.band)).add(each)
        return Errors(_error(predicted.input_tokens, input_tokens), _error(predicted.output_p50, output_tokens))


def first_count(raw: bytes) -> float:
    """Count the tokens of a body by its bytes. Small bodies as a whole; large ones by evenly spaced samples."""
    size = len(raw)
    if size <= _SAMPLE_ABOVE:
        return _count(raw)
    stride = size // _WINDOWS
    first = (stride - _WINDOW) // 2  # the middle of each part: the edges of a body are rarely like the rest
    sampled = sum(_count_window(raw[at : at + _WINDOW]) for at in range(first, stride * _WINDOWS, stride))
    return sampled * size / (_WINDOW * _WINDOWS)


def _count_window(window: bytes) -> float:
    embedded = window.isascii() and not _TEXT_SIGNS.search(window)
    return _WINDOW / EMBEDDED_BYTES_PER_TOKEN if embedded else _count(window)


def _count(text: bytes) -> float:
    size = len(text)
    if text.isascii():
        # Counting one byte is much quicker than two, and text without many backslashes has few \\u escapes.
        escapes = text.count(b"\\u") if text.count(b"\\") * _ESCAPES_MATTER > size else 0
        return (size - 6 * escapes) / ASCII_BYTES_PER_TOKEN + escapes
    # Characters are fewer than bytes by the continuation bytes, of which a CJK character has two among its three.
    high = min(size, (size - len(text.decode(errors="ignore"))) * 3 // 2)
    return (size - high) / ASCII_BYTES_PER_TOKEN + high / CJK_BYTES_PER_TOKEN


_TEXT_SIGNS = re.compile(rb'[ ",\\]')
"""What base64 has not: a whole window without any of these is embedded data."""


def _generates(request: EstimateRequest) -> bool:
    """Whether the answer is written token by token. Of routes that are not known, those do that take messages."""
    route = request.route
    return route is not Route.EMBEDDINGS and (route is not Route.OTHER or bool(request.body.messages))


def _choices(body: ParsedBody) -> int:
    return min(max(body.n or 1, 1), 128)


def _error(predicted: int, actual: int | None) -> float | None:
    return None if actual is None else (predicted - actual) / max(actual, 1)


class _Factor:
    """Actual input tokens over first count, as a ratio of decayed sums that starts at 1."""

    __slots__ = ("_actual", "_counted", "value")

    def __init__(self) -> None:
        self._actual = self._counted = _PRIOR_TOKENS
        self.value = 1.0

    def add(self, counted: float, actual: int) -> None:
        self._actual = self._actual * _DECAY + max(actual, 0)
        self._counted = self._counted * _DECAY + max(counted, 1.0)
        low, high = _FACTOR_RANGE
        self.value = min(max(self._actual / self._counted, low), high)


class _Outputs:
    """A decayed histogram of output lengths. Newer samples weigh more instead of all older ones being touched."""

    __slots__ = ("_samples", "_weight", "_weights", "quantiles")

    def __init__(self) -> None:
        self._weights = [0.0] * _BUCKETS
        self._weight = 1.0
        self._samples = 0
        self.quantiles = DEFAULT_OUTPUT_TOKENS

    def add(self, tokens: int) -> None:
        self._weights[_bucket(tokens)] += self._weight
        self._weight /= _DECAY
        self._samples += 1
        if self._weight > 1e100:
            self._weights = [weight / self._weight for weight in self._weights]
            self._weight = 1.0
        if self._samples <= _REFRESH_EVERY or self._samples % _REFRESH_EVERY == 0:
            self.quantiles = self._read()

    def _read(self) -> tuple[int, int, int]:
        sums = list(accumulate(self._weights))
        p50, p90, p99 = (_middle(bisect_left(sums, quantile * sums[-1])) for quantile in _QUANTILES)
        return p50, p90, p99


def _bucket(tokens: int) -> int:
    return min(int(math.log2(max(tokens, 0) + 1) * _PER_OCTAVE), _BUCKETS - 1)


def _middle(bucket: int) -> int:
    """Return the whole number of tokens in the middle of a bucket, on the logarithmic scale."""
    return max(0, round(2 ** ((bucket + 0.5) / _PER_OCTAVE) - 1))


class _Table(dict[K, V]):
    """A bounded table: the row longest without a sample makes room."""

    def __init__(self, new: Callable[[], V], most: int) -> None:
        super().__init__()
        self._new = new
        self._most = most

    def touch(self, key: K) -> V:
        row = self.pop(key, None)
        if row is None:
            row = self._new()
            if len(self) >= self._most:
                del self[next(iter(self))]
        self[key] = row
        return row
