"""The policy section: everything that decides what runs, waits and is refused (SPEC §2, §4, §6).

Defaults here are only for what a preset leaves out; the shipped presets write every value with its reason. ``floor``
has no default: a band below the highest has to say how much it is promised, even when that is nothing.
"""

from __future__ import annotations

from fractions import Fraction

from pydantic import Field

from tidegate.config.fields import (
    BacklogOrderName,
    DisciplineName,
    FullName,
    Number,
    OrderName,
    Part,
    PositiveSeconds,
    PositiveWhole,
    ReserveCount,
    SaturatedName,
    Seconds,
    Section,
    ShedAnswer,
    ShedAnswerName,
    Size,
    Switch,
    Text,
    UnitName,
    Whole,
)
from tidegate.core import BacklogOrder, Discipline, Full, Order, Unit
from tidegate.core.policy import Saturated


class MessageSettings(Section):
    """Text of the fallback answer, by language."""

    zh: Text | None = Field(default=None, description="Chinese. Absent: the built-in text.")
    en: Text | None = Field(default=None, description="English. Absent: the built-in text.")


class BandSettings(Section):
    """One band."""

    weight: Number = Field(
        default=1.0,
        description="Base score W of the aging discipline, `W + aging_per_ms · wait_ms`; not above that of the next "
        "higher band.",
    )
    aging_per_ms: Number = Field(default=0.0, description="Score gained per millisecond of waiting.")
    share: PositiveWhole = Field(default=1, description="Weight of the weighted discipline.")
    floor: Part | None = Field(
        default=None,
        description="Guaranteed least part of the pool's dispatches while the band has work that may run. Required "
        "below the highest band; `0` says that it may wait for ever. With k floored bands each is at most "
        "1/(k + 1), and all together at most `overtake_cap`.",
    )
    promote_after: PositiveSeconds | None = Field(
        default=None,
        description="Age after which a ticket claims with the weights of the next higher band. Absent: never.",
    )
    order: OrderName = Field(
        default=Order.FIFO,
        description="Order inside one tenant's flow: arrival, shortest estimated work first, or deadline first.",
    )
    backlog_order: BacklogOrderName = Field(
        default=BacklogOrder.SAME, description="Order once the band's queue has not been empty for `backlog_after`."
    )
    capacity: PositiveWhole = Field(default=20_000, description="Most tickets waiting in this band, over all pools.")
    full: FullName = Field(default=Full.REJECT_NEWEST, description="What a band at its capacity does with a newcomer.")
    ttl: PositiveSeconds = Field(default=86_400.0, description="Longest wait before the ticket expires.")
    reserve: ReserveCount = Field(
        default=0,
        description="Lower bands start only while more than this many seats of the pool are free; below its seats. "
        "`auto`: the fewest that let this band start at once, measured; at most a quarter, 0 below 8 seats.",
    )
    ceiling: Part = Field(
        default=Fraction(1),
        description="Not dispatched while more than this part of the pool's seats is taken by all bands; above 0.",
    )
    kv_watermark: Part = Field(
        default=Fraction(0),
        description="Not dispatched to a backend whose free part of the KV cache is below this, which is below 1. "
        "0: no watermark.",
    )
    kv_resume: Part | None = Field(
        default=None, description="Dispatched there again above this; from `kv_watermark`, its default, to below 1."
    )
    when_saturated: SaturatedName = Field(
        default=Saturated.QUEUE,
        description="While ceiling or KV watermark stops the band, newcomers wait, or are shed. Work of jobs waits.",
    )
    max_output_tokens: PositiveWhole | None = Field(
        default=None, description="Cap written into the request. Absent: none."
    )
    max_input_tokens: PositiveWhole | None = Field(
        default=None,
        description="Longest estimated prompt. A longer one runs one band lower, or is a 413 under `strict_bands`.",
    )
    ttft_slo: PositiveSeconds | None = Field(default=None, description="Target for the first token. Absent: none.")
    tpot_slo: PositiveSeconds | None = Field(
        default=None, description="Target for the time per output token; `seats: auto` respects it. Absent: none."
    )
    shed_hopeless: Switch = Field(
        default=False,
        description="Refuse on arrival what would wait longer than half of `ttft_slo`, its TTL or its deadline.",
    )
    shed_answer: ShedAnswerName = Field(
        default=ShedAnswer.ERROR,
        description="Shed work gets an error (429), a normal completion that says so, or another model's answer.",
    )
    preemptible: Switch = Field(
        default=False,
        description="Its running work may be stopped for a higher band, and goes on later where it was.",
    )
    may_preempt: Switch = Field(
        default=False,
        description="Running work of lower, `preemptible` bands is stopped when this one waits for half of "
        "`target_wait` and no seat is in sight.",
    )
    target_wait: PositiveSeconds = Field(
        default=0.05, description="Longest wait that is meant for a band that `may_preempt`."
    )
    message: MessageSettings = Field(default=MessageSettings(), description="Text of the fallback answer.")


class PolicySettings(Section):
    """Everything the scheduler obeys."""

    discipline: DisciplineName = Field(default=Discipline.AGING, description="Which band is wanted next.")
    unit: UnitName = Field(default=Unit.TOKENS, description="What the weighted discipline counts.")
    overtake_cap: Part = Field(
        default=Fraction(15, 100),
        description="Most part of contended dispatches in which a lower band passes a higher one, floors included: "
        "not below their sum.",
    )
    queue_capacity: PositiveWhole = Field(default=25_000, description="Most tickets waiting in all bands and pools.")
    queue_bytes: Size = Field(default=512 * 1024**2, description="Most body bytes waiting in all bands and pools.")
    max_flows: PositiveWhole = Field(default=10_000, description="Distinct fairness ids; those beyond share one flow.")
    sjf_aging: Number = Field(
        default=1.0, description="Estimated tokens that a millisecond of waiting is worth in `sjf`."
    )
    lend_limit: PositiveWhole = Field(default=8, description="Most waiting tickets that one waiter lends its band to.")
    backlog_after: Seconds = Field(
        default=1.0, description="How long a queue must not be empty before `backlog_order` holds."
    )
    depends_timeout: PositiveSeconds = Field(default=600.0, description="Longest wait for a dependency.")
    preempt_rate: Part = Field(
        default=Fraction(5, 100), description="Most part of a pool's dispatches that may be preemptions. 0: none."
    )
    max_preemptions: Whole = Field(default=2, description="How often one request may be stopped.")
    resume_attempts: Whole = Field(
        default=2,
        description="How often an answer whose backend failed midway goes on at another one. 0: it ends with an error.",
    )
    bands: dict[str, BandSettings] = Field(
        json_schema_extra={"shown": "the preset's"},
        description="`p0` (highest) to `p7`. Those of the preset are overridden key by key; more may be added.",
        min_length=1,
        max_length=8,
    )
