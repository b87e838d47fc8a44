"""The rules inside the engine, as plain values; their defaults are those of the gateway's policy."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidegate.core import Policy, TidegateError


class RulesError(TidegateError, ValueError):
    """A rule is not as expected; the message names the setting, what was expected and what came."""


@dataclass(frozen=True, slots=True)
class BandRules:
    """What holds for one band.

    Attributes:
        kv_watermark: part of the KV blocks that stays free when one of the band is admitted beside running others.
        preemptible: its running work may be stopped for waiting work of a higher band.
        may_preempt: its waiting work may have others' stopped.
    """

    kv_watermark: float = 0.0
    preemptible: bool = False
    may_preempt: bool = False


def _bands() -> tuple[BandRules, ...]:
    return tuple(BandRules(band.kv_watermark, band.preemptible, band.may_preempt) for band in Policy().bands)


@dataclass(frozen=True, slots=True)
class Rules:
    """All of them.

    Attributes:
        bands: the highest first.
        preemptions_per_s: most stops for waiting work per second, over any longer time; a second's worth may be saved.
        max_preemptions: how often one request may be stopped for waiting work.
        promote_after_s: wait after which a request may be admitted as one of the highest band.
        overtake_cap: most part of the admissions that may be such ones.

    Raises:
        RulesError: a value is out of its range.
    """

    bands: tuple[BandRules, ...] = _bands()
    preemptions_per_s: float = 10.0
    max_preemptions: int = Policy().max_preemptions
    promote_after_s: float = 10.0
    overtake_cap: float = float(Policy().overtake_cap)

    def __post_init__(self) -> None:
        if not 1 <= len(self.bands) <= 8:
            raise RulesError(f"bands: expected 1 to 8 of them, got {len(self.bands)}")
        for index, band in enumerate(self.bands):
            _within(f"bands.p{index}.kv_watermark", band.kv_watermark, 0.0, 0.99)
        _within("preemptions_per_s", self.preemptions_per_s, 0.0, 1e6)
        _within("max_preemptions", self.max_preemptions, 0, 1_000_000)
        _within("promote_after_s", self.promote_after_s, 0.0, 1e9)
        _within("overtake_cap", self.overtake_cap, 0.0, 1.0)

    def keeping(self, part: float) -> Rules:
        """Give the rules in which every band keeps at least this part of the blocks free."""
        bands = (replace(band, kv_watermark=max(part, band.kv_watermark)) for band in self.bands)
        return replace(self, bands=tuple(bands))

    @property
    def last_pressing(self) -> int:
        """The lowest band whose waiting work may have others' stopped; -1: none."""
        return max((index for index, band in enumerate(self.bands) if band.may_preempt), default=-1)


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise RulesError(f"{name}: expected a number from {low:g} to {high:g}, got {value:g}")
