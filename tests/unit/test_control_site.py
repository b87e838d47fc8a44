"""The dashboard's files: what they are served with, and that they load nothing from elsewhere."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tidegate.config import ConfigError, parse_settings, patch_policy, replace_backends
from tidegate.control.site import POLICY, site_routes
from tidegate.core import Outcome, Reason
from tidegate.splice import BROKEN, PREEMPTED
from tidegate.testing import run_virtual
from unit.control_stage import FILE, LOCAL, Stage

PAGES = Path(str(files("tidegate.control") / "pages"))
FILES = sorted(path.relative_to(PAGES).as_posix() for path in PAGES.rglob("*") if path.is_file())


def test_every_file_is_served_and_nothing_else() -> None:
    assert {route.path for route in site_routes()} == {"/" if f == "index.html" else f"/{f}" for f in FILES}

    async def story() -> None:
        stage = Stage()
        for path in ("/../site.py", "/js/", "/index.html", "/js/../../site.py", "/js/%2e%2e/%2e%2e/app.py"):
            assert (await stage.get(path)).status == 404
        for path in FILES:
            answer = await stage.get("/" if path == "index.html" else f"/{path}")
            assert answer.status == 200
            assert answer.body == (PAGES / path).read_bytes()
            assert answer.headers[b"content-security-policy"] == POLICY.encode()
            assert answer.headers[b"x-content-type-options"] == b"nosniff"
            assert answer.headers[b"content-type"].split(b";")[0] in (
                b"text/html",
                b"text/css",
                b"text/javascript",
                b"image/svg+xml",
            )
            etag = answer.headers[b"etag"]
            again = await stage.get("/" if path == "index.html" else f"/{path}", [*LOCAL, (b"if-none-match", etag)])
            assert (again.status, again.body) == (304, b"")

    run_virtual(story())


def test_the_policy_lets_a_page_load_its_own_files_only_and_no_inline_script_or_style() -> None:
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules["default-src"] == "'none'"
    assert all(rules[kind] == "'self'" for kind in ("script-src", "style-src", "connect-src", "img-src"))
    assert "unsafe" not in POLICY


@pytest.mark.parametrize("path", FILES)
def test_no_file_names_another_host_or_writes_markup(path: str) -> None:
    text = (PAGES / path).read_text()
    assert not re.search(r"(https?:)?//(?!www\.w3\.org/2000/svg)[a-z0-9-]+\.[a-z]", text)
    assert not re.search(r"innerHTML|outerHTML\s*=|insertAdjacentHTML|document\.write|eval\(|new Function", text)
    assert not re.search(r"\son[a-z]+=|\sstyle=|<style|javascript:", text if path.endswith((".html", ".svg")) else "")
    assert text.count("\n") < 400


def words(language: str) -> dict[str, str]:
    text = (PAGES / f"js/words-{language}.js").read_text()
    return dict(re.findall(r'(?:^|[ {])(\w+): "((?:[^"\\]|\\.)*)"', text))


def test_both_languages_have_the_same_words_and_places() -> None:
    english, chinese = words("en"), words("zh")
    assert len(english) > 150
    assert english.keys() == chinese.keys()
    for key, text in english.items():
        assert set(re.findall(r"\{\w+\}", text)) == set(re.findall(r"\{\w+\}", chinese[key])), key


def test_every_word_that_a_script_asks_for_is_there_and_every_word_is_asked_for() -> None:
    known = words("en")
    source = "".join((PAGES / path).read_text() for path in FILES if not path.startswith("js/words-"))
    asked = set(re.findall(r'\bt\("(\w+)"', source)) | set(re.findall(r'data-(?:t|label)="(\w+)"', source))
    assert asked - known.keys() == set()
    spoken = set(re.findall(r'["`](\w+)["`]', source)) | asked
    families = ("find_", "gate_", "reason_", "cause_", "differing_")
    assert {key for key in known if key not in spoken and not key.startswith(families)} == set()


def test_every_reason_of_a_refusal_has_words() -> None:
    assert {key.removeprefix("reason_") for key in words("en") if key.startswith("reason_")} == {*map(str, Reason)}


def test_what_a_mode_only_observes_is_told_in_the_language_of_the_page() -> None:
    source = (PAGES / "js/modes.js").read_text()
    said = set(re.findall(r'(\w+): "would_(\w+)"', source))
    assert said == {(name, name) for name in ("held", "kv", "reordered")}, "what is counted beside refusals"
    assert "t(WOULD[reason] ?? `reason_${reason}`)" in source
    assert {f"would_{name}" for name, _ in said} <= words("zh").keys()


def sentences() -> list[tuple[re.Pattern[str], str]]:
    rows = re.findall(r'^  \[/(.+)/, "(.+)"\],$', (PAGES / "js/refused-zh.js").read_text(), re.MULTILINE)
    return [(re.compile(pattern), chinese) for pattern, chinese in rows]


def refusals_of_knobs() -> set[str]:
    """What the gateway says to all kinds of wrong values of the knobs that the page shows."""
    settings = parse_settings(FILE.replace("seats: 1", "seats: 10"))
    source = (PAGES / "js/knobs.js").read_text()
    of_all, of_bands = (
        re.findall(r'"(\w+)"', found) for found in re.findall(r"^const \w+ = \[(.+)\];", source, re.MULTILINE)
    )
    values = ["x", "-1", "0", "1", "2", "0.5", "99", "1e9", "007", "5 parsecs", "autoo", None]
    patches: list[dict[str, Any]] = [{key: value} for key in of_all for value in values]
    bands = settings.band_names
    patches += [{"bands": {band: {key: value}}} for key in of_bands for band in bands for value in values]
    patches += [{"bands": {band: {"floor": part} for band in bands[1:]}} for part in ("0.1", "0.4")]
    patches += [{"overtake_cap": "0.9", "bands": {band: {"floor": "0.4"} for band in bands[1:]}}]
    found: set[str] = set()
    for patch in patches:
        try:
            patch_policy(settings, patch)
        except ConfigError as error:
            found |= {problem.expected for problem in error.errors}
    for value in values:
        backend = {"name": "b", "url": "http://b:1", "seats": value}
        try:
            replace_backends(settings, {"models": [{"name": "m", "backends": [backend]}]})
        except ConfigError as error:
            found |= {problem.expected for problem in error.errors}
    return found


def test_every_refusal_of_a_knob_has_words_in_chinese() -> None:
    said = refusals_of_knobs()
    assert len(said) > 20
    assert {text for text in said if not any(pattern.search(text) for pattern, _ in sentences())} == set()
    for pattern, chinese in sentences():
        places = [int(place) for place in re.findall(r"\$(\d)", chinese)]
        assert max(places, default=0) <= pattern.groups, chinese
    unused = {pattern.pattern for pattern, _ in sentences() if not any(pattern.search(text) for text in said)}
    assert unused == set(), "what no knob evokes needs no words"


def test_every_cause_of_waste_has_words() -> None:
    causes = {PREEMPTED, BROKEN, *(str(outcome) for outcome in Outcome if outcome is not Outcome.COMPLETED)}
    assert {key.removeprefix("cause_") for key in words("en") if key.startswith("cause_")} == causes


def colours(theme: str) -> dict[str, str]:
    text = (PAGES / "base.css").read_text()
    dark = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", text[: text.index(":root[data-theme")]))
    light = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", text[text.index(":root[data-theme") :].split("}")[0]))
    return dark if theme == "dark" else dark | light


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2.2."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize(
    ("ink", "ground", "least"),
    [("ink", "card", 12), ("ink", "bg", 12), ("soft", "card", 4.5), ("soft", "bg", 4.5), ("faint", "card", 3)]
    + [(state, f"{state}-bg", 4.5) for state in ("good", "warn", "bad", "info")]
    + [(state, "card", 4.5) for state in ("good", "warn", "bad", "info", "p0", "p1", "p2")]
    + [("ink", f"{state}-bg", 7) for state in ("good", "warn", "bad", "info")],
)
def test_what_is_written_can_be_read(theme: str, ink: str, ground: str, least: float) -> None:
    found = colours(theme)
    one, other = sorted((luminance(found[ink]), luminance(found[ground])), reverse=True)
    assert (one + 0.05) / (other + 0.05) >= least
