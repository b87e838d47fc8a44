"""The vLLM plugin without vLLM: what it imports, what it reads, which versions it takes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tidegate import vllm_plugin
from tidegate.core import Policy
from tidegate.vllm_plugin.rules import BandRules, Rules, RulesError
from tidegate.vllm_plugin.settings import read_rules
from tidegate.vllm_plugin.versions import SUPPORTED, refusal


def test_the_rules_are_those_of_the_gateways_policy() -> None:
    policy, rules = Policy(), Rules()
    assert [band.kv_watermark for band in rules.bands] == [0, 0.08, 0.15]
    for ours, theirs in zip(rules.bands, policy.bands, strict=True):
        assert (ours.preemptible, ours.may_preempt) == (theirs.preemptible, theirs.may_preempt)
    assert (rules.max_preemptions, rules.overtake_cap) == (2, 0.15)
    assert rules.last_pressing == 0


def test_nothing_said_is_the_default() -> None:
    assert read_rules({}) == read_rules(None) == read_rules({"tidegate": {}, "other": 1}) == (Rules(), False)


def test_what_is_said_changes_the_rules() -> None:
    said = {
        "bands": {"p1": {"preemptible": True}, "p2": {"kv_watermark": 0}, "p3": {"kv_watermark": 0.3}},
        "preemptions_per_s": 4,
        "promote_after_s": 2.5,
        "any_version": True,
    }
    rules, anyhow = read_rules({"tidegate": said})
    assert anyhow
    assert rules.bands == (
        BandRules(0.0, may_preempt=True),
        BandRules(0.08, preemptible=True),
        BandRules(0.0, preemptible=True),
        BandRules(0.3, preemptible=True),
    )
    assert (rules.preemptions_per_s, rules.promote_after_s, rules.max_preemptions) == (4.0, 2.5, 2)
    assert [band.kv_watermark for band in rules.keeping(0.1).bands] == [0.1, 0.1, 0.1, 0.3]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (7, "tidegate: expected a mapping, got 7"),
        ({"bands": []}, r"tidegate.bands: expected a mapping, got \[\]"),
        ({"bands": {"gold": {}}}, "tidegate.bands.gold: expected bands named p0 to p7"),
        ({"bands": {"p4": {}}}, "tidegate.bands.p3: expected it too"),
        ({"bands": {"p2": 1}}, "tidegate.bands.p2: expected a mapping, got 1"),
        ({"bands": {"p2": {"ttl": "9s"}}}, "tidegate.bands.p2.ttl: no such setting; expected one of kv_watermark, may"),
        ({"bands": {"p2": {"kv_watermark": 1.0}}}, "tidegate.bands.p2.kv_watermark: expected a number from 0 to 0.99"),
        ({"bands": {"p2": {"kv_watermark": "1"}}}, "tidegate.bands.p2.kv_watermark: expected a number, got '1'"),
        ({"bands": {"p2": {"preemptible": 1}}}, "tidegate.bands.p2.preemptible: expected true or false, got 1"),
        ({"max_preemptions": 1.5}, "tidegate.max_preemptions: expected a whole number, got 1.5"),
        ({"max_preemptions": True}, "tidegate.max_preemptions: expected a whole number, got True"),
        ({"preemptions_per_s": -1}, "tidegate.preemptions_per_s: expected a number from 0"),
        ({"promote_after": "9s"}, "tidegate.promote_after: no such setting; expected one of any_version, bands, max"),
        ({"any_version": "yes"}, "tidegate.any_version: expected true or false, got 'yes'"),
    ],
)
def test_a_wrong_setting_is_named(said: object, words: str) -> None:
    with pytest.raises(RulesError, match=f"^{words}"):
        read_rules({"tidegate": said})


def test_other_versions_are_refused_by_name_and_may_be_tried() -> None:
    supported = f"{SUPPORTED[0]}.7+cpu"
    assert refusal(supported, [], anyhow=False, how="x") is None
    assert refusal("0.99.0", [], anyhow=True, how="x") is None
    said = refusal("0.99.0", [], anyhow=False, how="tidegate.any_version")
    assert said is not None
    assert f"supports vLLM {SUPPORTED[0]}.x; this is 0.99.0" in said
    assert "tidegate.any_version: true" in said
    said = refusal(supported, ["Scheduler.add_request without request"], anyhow=True, how="x")
    assert said is not None
    assert "Scheduler.add_request without request" in said


@pytest.mark.slow
def test_it_is_imported_with_the_standard_library_alone() -> None:
    """vLLM's environment has none of the gateway's dependencies: all but the class itself is imported without any."""
    code = """
import sys
from tidegate.vllm_plugin import decide, rules, settings, versions
allowed = set(sys.stdlib_module_names) | {"tidegate", "__main__"}
print(sorted({name.partition(".")[0] for name in sys.modules} - allowed))
print(sorted(name for name in sys.modules if name.startswith("tidegate.") and name.split(".")[1] not in
             {"_version", "core", "vllm_plugin"}))
print("asyncio" in sys.modules)
"""
    source = str(next(iter(vllm_plugin.__path__))).removesuffix("/tidegate/vllm_plugin")
    ran = subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": source}, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split("\n")[:3] == ["[]", "[]", "False"]


def test_where_vllm_is_not_installed_the_class_says_how_to_install_it() -> None:
    with pytest.raises(ImportError, match="pip install --no-deps tidegate"):
        _ = vllm_plugin.TidegateScheduler
    with pytest.raises(AttributeError, match="nothing"):
        _ = vllm_plugin.nothing
    assert vllm_plugin.__all__ == ["TidegateScheduler"]
