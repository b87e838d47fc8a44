"""Guess the work of a request before it runs, and learn from what it really was (SPEC §4.5).

Input: the body's bytes give a first count, one token per four ASCII bytes and one per CJK character (three bytes in
UTF-8), embedded base64 data nearly none. A factor, learned per tenant and model as a decayed ratio of sums of actual
over first count, corrects it: a ratio of sums is not thrown off by many tiny requests as a mean of ratios would be.

Output: quantiles of a decayed histogram with logarithmic buckets (four to the octave, so within 9 % of the value)
per tenant, model and band; without samples of its own a request takes those of the model and band.

Invariants: tables are bounded; the same calls in the same order give the same estimates; estimates order and budget
and never change an answer.

What is made for every request is a class that is written out: compiled, its fields are read without a look-up.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate
from typing import Final, Generic, TypeVar

from tidegate.classify.fields import ParsedBody
from tidegate.classify.route import Route
from tidegate.core import WorkEstimate
from tidegate.core.compiling import mypyc_attr

ASCII_BYTES_PER_TOKEN: Final = 4.0
CJK_BYTES_PER_TOKEN: Final = 3.0
EMBEDDED_BYTES_PER_TOKEN: Final = 400.0
"""An image of 400 kB in base64 is about a thousand tokens to a vision model."""

DEFAULT_OUTPUT_TOKENS: Final = (200, 600, 1500)
"""Output quantiles before anything is known: the conversation traces of 2023 and 2024 lie near these."""

V = TypeVar("V")
Key = tuple[str | int, ...]
"""Of tenant, pool and band those that the rows of a table stand for."""

_SAMPLE_ABOVE: Final = 8192
_WINDOWS: Final = 8
_ESCAPES_MATTER: Final = 50
_BACKSLASH: Final = 92
_WINDOW: Final = 256
_DECAY: Final = 0.99
_PRIOR_TOKENS: Final = 500.0
_LEAST_FACTOR: Final = 0.1
_LARGEST_FACTOR: Final = 5.0
_BUCKETS: Final = 96
_PER_OCTAVE: Final = 4
_REFRESH_EVERY: Final = 16
_QUANTILES: Final = (0.5, 0.9, 0.99)
_EMBEDDINGS: Final = Route.EMBEDDINGS
_OTHER: Final = Route.OTHER


@mypyc_attr(acyclic=True, free_list_len=1)
class Quantiles:
    """A prediction in tokens: input, and quantiles of the whole output (all choices).

    The rest is the predictor's own: what ``learn`` needs of the request, so that nobody keeps its body for that.
    As it is by default, nothing is learned of it.
    """

    __slots__ = (
        "choices", "common", "factor", "first_count", "generates", "input_tokens",
        "output_p50", "output_p90", "output_p99", "own",
    )  # fmt: skip

    def __init__(
        self,
        input_tokens: int,
        output_p50: int,
        output_p90: int,
        output_p99: int,
        factor: Key = (),
        own: Key = (),
        common: Key = (),
        first_count: float = 0.0,
        choices: int = 1,
        *,
        generates: bool = False,
    ) -> None:
        self.input_tokens: Final = input_tokens
        self.output_p50: Final = output_p50
        self.output_p90: Final = output_p90
        self.output_p99: Final = output_p99
        self.factor: Final = factor
        self.own: Final = own
        self.common: Final = common
        self.first_count: Final = first_count
        self.choices: Final = choices
        self.generates: Final = generates

    def forgetful(self) -> Quantiles:
        """Return the same prediction, of which nothing is learned."""
        return Quantiles(self.input_tokens, self.output_p50, self.output_p90, self.output_p99)

    @property
    def work(self) -> WorkEstimate:
        """The estimate that orders and budgets: the median output."""
        return WorkEstimate(self.input_tokens, self.output_p50)


@mypyc_attr(allow_interpreted_subclasses=True)
class Predictor:
    """Predicts a request's work. MUST be deterministic, quick (it runs on every arrival) and MUST NOT raise."""

    def predict(
        self,
        tenant: str,
        pool: str,
        band: int,
        *,
        route: Route,
        raw: bytes,
        body: ParsedBody,
        limit: int | None = None,
        ascii_only: bool | None = None,
    ) -> Quantiles:
        """Return the prediction for one request.

        Args:
            tenant: who pays.
            pool: where it will run.
            band: index of its band.
            route: the endpoint.
            raw: the body as it came.
            body: what was read of it.
            limit: the lowest of the request's and the band's output caps.
            ascii_only: whether ``raw`` is ASCII alone, where that is known.
        """
        raise NotImplementedError

    def learn(self, predicted: Quantiles, *, input_tokens: int | None, output_tokens: int | None) -> None:
        """Take in what the request really used; ``None`` for what the engine did not tell."""
        raise NotImplementedError


class LearnedPredictor(Predictor):
    """The default predictor: a learned factor for the input, learned quantiles for the output."""

    def __init__(self, max_rows: int = 4096) -> None:
        self._factors: _Table[_Factor] = _Table(_Factor, max_rows)
        self._own: _Table[_Outputs] = _Table(_Outputs, max_rows)
        self._common: _Table[_Outputs] = _Table(_Outputs, max_rows)

    def predict(
        self,
        tenant: str,
        pool: str,
        band: int,
        *,
        route: Route,
        raw: bytes,
        body: ParsedBody,
        limit: int | None = None,
        ascii_only: bool | None = None,
    ) -> Quantiles:
        """Return the prediction for one request. Costs a few dictionary look-ups."""
        count = _count(raw, ascii_only=ascii_only) if len(raw) <= _SAMPLE_ABOVE else first_count(raw)
        named: Key = (tenant, pool)
        factor = self._factors.rows.get(named)
        tokens = int(count + 0.5) if factor is None else int(count * factor.value + 0.5)
        if not tokens:
            tokens = 1
        wanted = body.n
        choices = 1 if wanted is None else min(max(wanted, 1), 128)
        # Written token by token. Of routes that are not known, those are that take messages.
        generates = route is not _EMBEDDINGS and (route is not _OTHER or bool(body.messages))
        own: Key = (tenant, pool, band)
        common: Key = (pool, band)
        if not generates:
            return Quantiles(tokens, 0, 0, 0, named, own, common, count)
        outputs = self._own.rows.get(own)
        if outputs is None:
            outputs = self._common.rows.get(common)
        p50, p90, p99 = DEFAULT_OUTPUT_TOKENS if outputs is None else outputs.quantiles
        if limit is not None and limit < p99:
            p50, p90, p99 = min(p50, limit), min(p90, limit), limit
        if choices > 1:
            p50, p90, p99 = p50 * choices, p90 * choices, p99 * choices
        return Quantiles(tokens, p50, p90, p99, named, own, common, count, choices, generates=True)

    def learn(self, predicted: Quantiles, *, input_tokens: int | None, output_tokens: int | None) -> None:
        """Take in what the request really used."""
        if input_tokens is not None and predicted.first_count > 0:
            self._factors.touch(predicted.factor).add(predicted.first_count, input_tokens)
        if output_tokens is not None and predicted.generates:
            bucket = _bucket(output_tokens // predicted.choices)
            self._own.touch(predicted.own).add(bucket)
            self._common.touch(predicted.common).add(bucket)


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


def _count(text: bytes, *, ascii_only: bool | None = None) -> float:
    size = len(text)
    if text.isascii() if ascii_only is None else ascii_only:
        # Looking for one byte is much quicker than counting it, and that quicker than counting two: most text has no
        # backslash at all, and text without many has few \\u escapes.
        if _BACKSLASH not in text or text.count(b"\\") * _ESCAPES_MATTER <= size:
            return size / ASCII_BYTES_PER_TOKEN
        escapes = text.count(b"\\u")
        return (size - 6 * escapes) / ASCII_BYTES_PER_TOKEN + escapes
    # Characters are fewer than bytes by the continuation bytes, of which a CJK character has two among its three.
    high = min(size, (size - len(text.decode(errors="ignore"))) * 3 // 2)
    return (size - high) / ASCII_BYTES_PER_TOKEN + high / CJK_BYTES_PER_TOKEN


_TEXT_SIGNS: Final = re.compile(rb'[ ",\\]')
"""What base64 has not: a whole window without any of these is embedded data."""


class _Factor:
    """Actual input tokens over first count, as a ratio of decayed sums that starts at 1."""

    __slots__ = ("_actual", "_counted", "value")

    def __init__(self) -> None:
        self._actual = self._counted = _PRIOR_TOKENS
        self.value = 1.0

    def add(self, counted: float, actual: int) -> None:
        self._actual = told = self._actual * _DECAY + (actual if actual > 0 else 0)
        self._counted = taken = self._counted * _DECAY + (counted if counted > 1.0 else 1.0)
        ratio = told / taken
        if ratio < _LEAST_FACTOR:
            ratio = _LEAST_FACTOR
        elif ratio > _LARGEST_FACTOR:
            ratio = _LARGEST_FACTOR
        self.value = ratio


class _Outputs:
    """A decayed histogram of output lengths. Newer samples weigh more instead of all older ones being touched."""

    __slots__ = ("_samples", "_until", "_weight", "_weights", "quantiles")

    def __init__(self) -> None:
        self._weights: dict[int, float] = {}  # by bucket
        self._weight = 1.0
        self._samples = 0  # when the quantiles were read
        self._until = 1  # samples until they are read anew
        self.quantiles = DEFAULT_OUTPUT_TOKENS

    def add(self, bucket: int) -> None:
        weight, weights = self._weight, self._weights
        weights[bucket] = weights.get(bucket, 0.0) + weight
        self._weight = weight / _DECAY
        self._until = until = self._until - 1
        if not until:
            self._refresh()

    def _refresh(self) -> None:
        """Read the quantiles anew: after each of the first samples, then after every so many."""
        self._samples += 1 if self._samples < _REFRESH_EVERY else _REFRESH_EVERY
        self._until = 1 if self._samples < _REFRESH_EVERY else _REFRESH_EVERY
        weight = self._weight
        if weight > 1e100:
            self._weights = {bucket: old / weight for bucket, old in self._weights.items()}
            self._weight = 1.0
        self.quantiles = self._read()

    def _read(self) -> tuple[int, int, int]:
        buckets = sorted(self._weights)
        sums = list(accumulate([self._weights[bucket] for bucket in buckets]))
        p50, p90, p99 = [_MIDDLES[buckets[bisect_left(sums, quantile * sums[-1])]] for quantile in _QUANTILES]
        return p50, p90, p99


_buckets: Final[dict[int, int]] = {}
_BUCKETS_KNOWN: Final = 8192


def _bucket(tokens: int) -> int:
    bucket = _buckets.get(tokens)
    if bucket is None:
        bucket = min(int(math.log2(max(tokens, 0) + 1) * _PER_OCTAVE), _BUCKETS - 1)
        if len(_buckets) < _BUCKETS_KNOWN:
            _buckets[tokens] = bucket
    return bucket


_MIDDLES: Final = [max(0, round(2 ** ((bucket + 0.5) / _PER_OCTAVE) - 1)) for bucket in range(_BUCKETS)]
"""The whole number of tokens in the middle of each bucket, on the logarithmic scale."""


class _Table(Generic[V]):
    """A bounded table: the row longest without a sample makes room."""

    __slots__ = ("_most", "_new", "_newest", "_newest_key", "rows")

    def __init__(self, new: Callable[[], V], most: int) -> None:
        self._new = new
        self._most = most
        self._newest: V | None = None
        self._newest_key: Key = ()
        self.rows: dict[Key, V] = {}

    def touch(self, key: Key) -> V:
        newest = self._newest
        if newest is not None and key == self._newest_key:
            return newest
        row = self.rows.pop(key, None)
        if row is None:
            if len(self.rows) >= self._most:
                del self.rows[next(iter(self.rows))]
            row = self._new()
        self.rows[key] = self._newest = row
        self._newest_key = key
        return row
