"""The command line: help, version, init, keygen, check, and errors without tracebacks."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from tidegate import __version__, cli
from tidegate.cli import _output
from tidegate.config import ConfigError, key_digest, load_settings, parse_settings, preset_names, preset_text
from tidegate.core import TidegateError


def run(*args: str) -> Result:
    return CliRunner().invoke(cli.app, list(args), env={"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "100"})


def failed(*args: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """Run ``main`` as a user does; return its status and standard error."""
    monkeypatch.setattr(sys, "argv", ["tidegate", *args])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(str(caught.value.code)), capsys.readouterr().err


def test_the_version_is_printed() -> None:
    assert run("--version").output == f"tidegate {__version__}\n"


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_every_command_has_its_help(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"tidegate {command}" in result.output or f"root {command}" in result.output


def test_help_lists_every_command() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert all(command in result.output for command in cli.COMMANDS)


def test_an_unknown_command_is_refused() -> None:
    assert run("serv").exit_code == 2


@pytest.mark.parametrize("preset", preset_names())
def test_init_writes_a_file_that_loads_as_it_is(preset: str, tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    result = run("init", "--preset", preset, "--output", str(path))
    assert result.exit_code == 0
    assert str(path) in result.output
    assert load_settings(path, environ={}).preset == preset


def test_init_keeps_a_file_that_is_there_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("mine")
    result = run("init", "-o", str(path))
    assert result.exit_code == 1
    assert "is there already" in result.output
    assert path.read_text() == "mine"
    assert run("init", "-o", str(path), "--force").exit_code == 0
    assert path.read_text() == preset_text("flash-sale")


def test_init_prints_to_standard_output_and_names_the_nearest_preset() -> None:
    assert run("init", "-o", "-").output == preset_text("flash-sale")
    result = run("init", "--preset", "strikt")
    assert result.exit_code == 2
    assert "got 'strikt'; did you mean 'strict'?" in result.output


@pytest.mark.parametrize("name", ["2024", "null", "No", "shop"])
def test_keygen_prints_a_key_its_digest_and_an_entry_that_loads(name: str) -> None:
    output = run("keygen", "--name", name).output
    match = re.search(r"^key:    (tg-[\w-]{43})$", output, re.MULTILINE)
    assert match
    digest = key_digest(match[1])
    assert f"digest: {digest}" in output
    snippet = output[output.index("tenants:") :]
    settings = parse_settings("models: [{name: m, backends: [{url: http://a}]}]\n" + snippet)
    assert (settings.tenants[0].name, settings.tenants[0].keys) == (name, (digest,))
    assert yaml.safe_load(snippet)["tenants"][0]["name"] == name
    assert match[1] not in snippet


def test_keygen_makes_a_new_key_each_time_and_refuses_a_name_that_cannot_be() -> None:
    assert run("keygen").output != run("keygen").output
    result = run("keygen", "--name", "a/b")
    assert result.exit_code == 2
    assert "--name: expected a name" in result.output
    result = run("keygen", "--name", "anonymous")  # the settings file refuses it
    assert result.exit_code == 2
    assert "--name: expected another name" in result.output


def test_check_judges_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("models: [{name: m, backends: [{url: http://a, seats: 8}]}]\npolicy: {bands: {p2: {floor: 0}}}\n")
    result = run("check", "-c", str(path))
    assert result.exit_code == 0
    assert f"{path}: valid; aging over 3 bands, 1 model, 8 seats, 0 tenants" in result.output
    assert "warning: policy.bands.p2.floor: p2 may wait for ever" in result.output


@pytest.mark.parametrize("preset", preset_names())
def test_check_judges_a_preset_without_a_file(preset: str) -> None:
    result = run("check", "--preset", preset, "--seats", "16")
    assert result.exit_code == 0
    assert f"preset {preset}: valid" in result.output
    assert "16 seats" in result.output


def test_check_bounds_each_band_and_derives_it() -> None:
    output = run("check", "--seats", "10", "--service-time", "2s", "--tenants", "3").output
    lines = output.splitlines()
    assert "pool default: the longest wait with 10 seats, each held for 2 s at most" in lines
    # A floor of 1/20 on 10 seats, of which p0 reserves 2 at most: 20 dispatches are 3 rounds, 5,000 tickets 12,500.
    # An overtake may come before each floor: a newcomer among 3 tenants needs 3 · 39 dispatches, 15 rounds.
    at = lines.index("  p1  6 s to the next dispatch, 30 s to a tenant's first among 3, 25000 s through a full band")
    assert "1 of every 20 dispatches" in lines[at + 1]
    assert lines[at + 1].startswith("      ")
    assert lines[-1].startswith("warning: policy.bands.p1.ttl: p1 expires after 15 s, but may have to wait 30 s")
    assert run("check", "--seats", "10", "--service-time", "2s").output.splitlines()[-1] == "no warnings"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            (),
            "at most 16 of 64 seats free, enough while its work, arriving at random, takes up to 62 % of the seats",
        ),
        (
            ("--seats", "32"),
            "at most 8 of 32 seats free, enough while its work, arriving at random, takes up to 42 % of the seats",
        ),
        (("--seats", "7"), "reserve: auto of p0 keeps no seat free: the pool has fewer than 8"),
    ],
)
def test_check_says_how_far_an_automatic_reserve_goes(args: tuple[str, ...], said: str) -> None:
    assert said in run("check", *args).output


def test_check_says_what_helps_where_the_reserve_does_not(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    models = "models: [{name: m, backends: [{url: http://a}]}]\n"
    path.write_text(models + "policy: {preempt_rate: 0}\n")
    assert "beyond that running work is stopped for it\n" in run("check").output
    assert "62 % of the seats; beyond that it waits for seats\n" in run("check", "-c", str(path)).output
    path.write_text(models + "policy: {bands: {p0: {reserve: 2}}}\n")
    assert "reserve: auto" not in run("check", "-c", str(path)).output


def test_check_says_what_may_wait_for_ever() -> None:
    output = run("check", "--preset", "strict").output
    assert "  p1  may wait for ever\n" in output
    assert "\nwarning: policy.bands.p2.floor: p2 may wait for ever" in output


def test_check_warns_of_a_time_to_live_that_is_too_short() -> None:
    assert "warning: policy.bands.p1.ttl: p1 expires after 15 s" in run("check", "--service-time", "30s").output


def test_check_names_pools_of_equal_seats_together(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    pools = ", ".join(
        f"{{name: {m}, backends: [{{url: http://{m}, seats: {n}}}]}}" for m, n in (("a", 8), ("b", 9), ("c", 8))
    )
    path.write_text(f"models: [{pools}]\npolicy: {{bands: {{p2: {{floor: 0}}}}}}\n")
    output = run("check", "-c", str(path)).output
    assert "pools a, c: the longest wait with 8 seats" in output
    assert "pool b: the longest wait with 9 seats" in output
    assert output.count("warning: policy.bands.p2.floor") == 1


def test_check_refuses_a_service_time_that_is_none() -> None:
    result = run("check", "--service-time", "0s")
    assert result.exit_code == 2
    assert "--service-time: expected a duration above 0, got '0s'" in result.output


def test_a_bad_file_ends_with_its_problems_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("models: [{name: m, backends: [{url: http://a}]}]\npolcy: {}\n")
    status, error = failed("check", "-c", str(path), capsys=capsys, monkeypatch=monkeypatch)
    assert status == 2
    assert error.startswith(f"{path}:2:1: polcy: unknown setting")
    assert error.endswith("did you mean 'policy'?\n")
    status, error = failed("check", "-c", str(tmp_path / "none"), capsys=capsys, monkeypatch=monkeypatch)
    assert (status, error) == (2, f"{tmp_path / 'none'}: cannot read the file: No such file or directory\n")


def test_a_file_that_cannot_be_written_ends_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "no" / "t.yaml"
    status, error = failed("init", "-o", str(path), capsys=capsys, monkeypatch=monkeypatch)
    assert (status, error) == (1, f"tidegate: {path}: No such file or directory\n")


@pytest.mark.parametrize(
    ("error", "shown", "status"),
    [
        (OSError(98, "Address already in use"), "tidegate: Address already in use\n", 1),
        (OSError("odd"), "odd\n", 1),
        (TidegateError("policy: wrong"), "policy: wrong\n", 1),
        (TidegateError(), "TidegateError\n", 1),
        (ConfigError([]), "ConfigError\n", 2),
    ],
)
def test_faults_are_told_in_one_line(
    error: Exception, shown: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    _output.tell(error)
    assert capsys.readouterr().err == shown
    assert _output.status_of(error) == status


def test_an_engine_whose_port_is_taken_says_which(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        status, error = failed("engine", "--listen", listen, capsys=capsys, monkeypatch=monkeypatch)
    assert (status, error) == (1, f"tidegate: {listen}: Address already in use\n")
