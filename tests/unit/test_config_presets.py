"""The shipped policies: each file loads, is what its name gives, and differs from the default as documented."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tidegate import core
from tidegate.config import BandSettings, load_settings, parse_settings, preset_names, preset_text


def policy_of(preset: str) -> core.Policy:
    return load_settings(None, environ={}, backend_url="http://127.0.0.1:8000", preset=preset).core_policy()


DEFAULT = policy_of("flash-sale")


def differences(left: core.Policy, right: core.Policy) -> set[str]:
    fields = {"discipline", "unit", "overtake_cap", "queue_capacity", "queue_bytes", "sjf_aging", "max_flows"}
    found = {name for name in fields if getattr(left, name) != getattr(right, name)}
    for one, other in zip(left.bands, right.bands, strict=True):
        known = (
            name for name in core.Band.__dataclass_fields__ if name.removesuffix("_s") in BandSettings.model_fields
        )
        names = (name for name in known if getattr(one, name) != getattr(other, name))
        found |= {f"{one.name}.{name}" for name in names}
    return found


def test_the_four_presets_are_shipped_default_first() -> None:
    assert preset_names() == ["flash-sale", "kv-guard", "shared-platform", "strict"]
    with pytest.raises(KeyError):
        preset_text("none")


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_file_is_the_policy_that_its_name_gives(name: str) -> None:
    written = parse_settings(preset_text(name))
    store = {"control.store": "sqlite:///tidegate-control.db"}  # a file is for keeps, a trial leaves nothing behind
    named = load_settings(None, environ={}, backend_url="http://127.0.0.1:8000", preset=name, overrides=store)
    assert written == named


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("flash-sale", set()),
        ("kv-guard", {"p2.ceiling", "p2.when_saturated", "p1.when_saturated"}),
        ("shared-platform", {"discipline", "p1.ttl_s", "p1.promote_after_s"}),
        ("strict", {"discipline", "p1.floor", "p2.floor"}),
    ],
)
def test_presets_differ_from_the_default_as_the_table_says(name: str, changed: set[str]) -> None:
    assert differences(policy_of(name), DEFAULT) == changed


def test_the_numbers_of_the_presets() -> None:
    assert policy_of("kv-guard").bands[2].ceiling == Fraction(4, 5)
    assert [band.when_saturated for band in policy_of("kv-guard").bands] == ["queue", "shed", "shed"]
    platform = policy_of("shared-platform")
    assert platform.discipline == core.Discipline.WEIGHTED
    assert [band.share for band in platform.bands] == [8, 2, 1]
    assert (platform.bands[1].ttl_s, platform.bands[1].promote_after_s) == (7200.0, 1800.0)
    strict = policy_of("strict")
    assert strict.discipline == core.Discipline.STRICT
    assert [band.floor for band in strict.bands] == [0, 0, 0]


@pytest.mark.parametrize("name", preset_names())
def test_capacity_values_are_the_same_in_every_preset(name: str) -> None:
    bands = policy_of(name).bands
    assert [band.reserve for band in bands] == ["auto", 0, 0]
    assert [(band.kv_watermark, band.kv_resume) for band in bands] == [(0, 0), (0.08, 0.12), (0.15, 0.2)]
    assert [(band.ttft_slo_s, band.tpot_slo_s) for band in bands] == [(1, 0.05), (10, 0.1), (None, None)]


def test_edge_settings_of_the_default_preset() -> None:
    p0, p1, p2 = load_settings(None, environ={}, backend_url="http://a").policy.bands.values()
    assert (p0.max_output_tokens, p0.max_input_tokens, p0.shed_answer) == (512, 8192, "error")
    assert (p1.max_output_tokens, p1.shed_answer, p2.shed_answer) == (None, "fallback", "fallback")


@pytest.mark.parametrize("name", preset_names())
def test_preset_files_give_a_reason_beside_the_values(name: str) -> None:
    text = preset_text(name)
    policy = text[text.index("policy:") :].splitlines()
    assert sum("#" in line for line in policy) >= 12
