"""What matters in ``deploy/compose.yaml`` and the files around it. Docker Compose judges it too, where there is one."""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.compose_stage import DEPLOY, GATEWAYS, HAPROXY, made_env, services
from tidegate.config import Settings, key_digest, load_settings, parse_duration

ROOT = DEPLOY.parent
PAGE = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
OURS = "tidegate:local"


def dockerfile() -> str:
    return (DEPLOY / "Dockerfile").read_text(encoding="utf-8")


def named() -> list[Any]:
    return [pytest.param(name, service, id=name) for name, service in services().items()]


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return made_env(tmp_path_factory.mktemp("env"))[0]


@pytest.fixture(scope="module")
def settings(environ: dict[str, str]) -> Settings:
    known = {name: environ[name] for name in services()["gateway"]["environment"]}
    return load_settings(DEPLOY / "compose" / "tidegate.yaml", environ=known)


def text_of_compose() -> str:
    return (DEPLOY / "compose.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "service"), named())
def test_an_image_is_pinned_to_a_version(name: str, service: dict[str, Any]) -> None:
    image = service["image"]
    assert image == OURS or re.fullmatch(r"[a-z/]+:v?\d+\.\d+(\.\d+)?(-alpine)?", image), image
    assert ("build" in service) == (image == OURS)


def test_the_images_base_is_pinned_and_slim() -> None:
    assert re.search(r"^ARG PYTHON=python:3\.\d+\.\d+-slim-\w+$", dockerfile(), re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", dockerfile(), re.MULTILINE)) == {"${PYTHON}"}


@pytest.mark.parametrize(("name", "service"), named())
def test_a_container_may_do_little(name: str, service: dict[str, Any]) -> None:
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert "privileged" not in service
    assert not any("docker.sock" in str(volume) for volume in service.get("volumes", []))


@pytest.mark.parametrize(("name", "service"), named())
def test_ports_are_for_this_machine_alone(name: str, service: dict[str, Any]) -> None:
    """That of clients may be opened by the environment; the control port may not."""
    for port in service.get("ports", []):
        assert port.startswith("127.0.0.1:") or port == "${CLIENTS_BIND:-127.0.0.1}:8400:8400"
    assert name in ("balancer", "prometheus", "grafana") or "ports" not in service


@pytest.mark.parametrize(("name", "service"), named())
def test_what_is_mounted_is_there(name: str, service: dict[str, Any]) -> None:
    kept = yaml.safe_load(text_of_compose())["volumes"]
    for volume in service.get("volumes", []):
        source, target, *flags = volume.split(":")
        assert target.startswith("/")
        if source.startswith("./"):
            assert (DEPLOY / source).exists()
            assert flags == ["ro"]
        else:
            assert source in kept


def test_whoever_is_waited_for_says_when_it_is_ready() -> None:
    for service in services().values():
        for name, wish in service.get("depends_on", {}).items():
            assert wish == {"condition": "service_healthy"}
            assert "healthcheck" in services()[name] or (name == "gateway" and "/readyz" in dockerfile())


def test_stores_and_engines_are_reached_by_nobody_else() -> None:
    networks = yaml.safe_load(text_of_compose())["networks"]
    assert networks["stores"] == networks["engines"] == {"internal": True}
    members = {name for name, service in services().items() if "stores" in service["networks"]}
    assert members == {"gateway", "valkey", "postgres"}
    assert "engines" not in services()["balancer"]["networks"]


def test_every_variable_is_made_and_documented(environ: dict[str, str]) -> None:
    wanted = set(re.findall(r"(?<!\$)\$\{(\w+)", text_of_compose()))
    assert wanted - set(environ) == {"CLIENTS_BIND"}, "the only one with a default"
    assert set(environ) <= wanted
    assert [name for name in wanted if name not in PAGE] == []


def test_no_secret_is_in_a_file_that_is_shipped(environ: dict[str, str]) -> None:
    assert re.findall(r"(?i)password\s*[:=]\s*(?!\$)[\w-]+$", text_of_compose(), re.MULTILINE) == []
    assert "/deploy/.env" in (ROOT / ".gitignore").read_text().splitlines()
    assert all(len(value) >= 40 for value in environ.values())


def test_made_keys_fit_their_digests_and_are_never_made_over(tmp_path: Path) -> None:
    environ, shown = made_env(tmp_path)
    assert (tmp_path / ".env").stat().st_mode & 0o777 == 0o600
    assert key_digest(shown["token of operator duty"]) == environ["DUTY_TOKEN_DIGEST"]
    assert key_digest(shown["key of tenant checkout (p0)"]) == environ["CHECKOUT_KEY_DIGEST"]
    with pytest.raises(subprocess.CalledProcessError):
        made_env(tmp_path)
    assert dict(line.split("=", 1) for line in (tmp_path / ".env").read_text().splitlines()) == environ


def test_keys_are_not_made_for_a_folder_that_is_not_there(tmp_path: Path) -> None:
    target = tmp_path / "no" / "secrets.env"
    done = subprocess.run(["python3", str(DEPLOY / "make_env.py"), str(target)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{target}: No such file or directory\n")


def test_the_settings_are_those_of_the_services(settings: Settings) -> None:
    assert settings.cluster is not None
    assert settings.jobs is not None
    assert services()["gateway"]["deploy"]["replicas"] == GATEWAYS
    assert settings.cluster.first_share == Fraction(1, GATEWAYS)
    assert "@valkey:6379" in settings.cluster.store
    assert "@postgres:5432/" in settings.jobs.store
    assert settings.control.store == settings.jobs.store
    targets = [volume.split(":")[1] for volume in services()["gateway"]["volumes"]]
    assert settings.jobs.files in targets
    assert '"/etc/tidegate/tidegate.yaml"' in dockerfile()
    assert "./compose:/etc/tidegate:ro" in services()["gateway"]["volumes"]
    (model,) = settings.models
    for backend in model.backends:
        command = services()[backend.name]["command"]
        assert backend.url == f"http://{backend.name}:8000"
        assert command[command.index("--max-sequences") + 1] == str(backend.seats)
        assert command[command.index("--model") + 1] == model.name


def test_nobody_is_stopped_before_streams_have_had_their_time(settings: Settings) -> None:
    drain_s = settings.gateway.drain_timeout
    for name in ("gateway", "balancer"):
        assert parse_duration(services()[name]["stop_grace_period"]) > drain_s
    (hard,) = re.findall(r"hard-stop-after (\S+)", (DEPLOY / "compose" / "haproxy.cfg").read_text())
    assert drain_s < parse_duration(hard) < parse_duration(services()["balancer"]["stop_grace_period"])


def test_ports_of_the_files_agree(settings: Settings) -> None:
    balancer = (DEPLOY / "compose" / "haproxy.cfg").read_text()
    scraped = (DEPLOY / "prometheus" / "prometheus.yaml").read_text()
    clients, control = settings.gateway.listen.port, settings.control.listen.port
    assert f"gateway:{clients} " in balancer
    assert f"gateway:{control} " in balancer
    assert f"names: [gateway], type: A, port: {control}" in scraped
    assert f"127.0.0.1:{clients}/readyz" in dockerfile()


def test_the_image_has_the_versions_that_are_tested() -> None:
    def pins(name: str) -> set[str]:
        return {line for line in (ROOT / "requirements" / name).read_text().splitlines() if "==" in line}

    image = pins("image.txt")
    assert image <= pins("dev.txt")
    assert pins("build.txt") <= pins("dev.txt")
    assert {line.partition("==")[0] for line in image} == {"psycopg", "psycopg-binary", "valkey"}


def test_the_images_sources_are_there_and_not_ignored() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    let_in = [line[1:] for line in ignored if line.startswith("!")]
    assert ignored[0] == "*", "what is not named does not go to the builder: no .env, no .git"
    for line in re.findall(r"^COPY (?!--from)(.+)$", dockerfile(), re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists()
            assert any(fnmatch.fnmatch(source, pattern) for pattern in let_in)
    assert re.search(r"^USER 10001:10001$", dockerfile(), re.MULTILINE)


def test_grafana_finds_the_dashboard_and_prometheus() -> None:
    folder = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((folder / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((folder / "dashboards" / "tidegate.yaml").read_text())["providers"]
    grafana = services()["grafana"]
    place = provider["options"]["path"]
    assert f"./grafana/tidegate.json:{place}/tidegate.json:ro" in grafana["volumes"]
    assert grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"].startswith(place)


@pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed (Debian and Ubuntu: package haproxy)")
def test_haproxy_finds_its_file_right() -> None:
    assert HAPROXY is not None
    command = [HAPROXY, "-c", "-f", str(DEPLOY / "compose" / "haproxy.cfg")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=40)
    assert (done.returncode, "WARNING" in done.stderr) == (0, False), done.stderr


PROMTOOL = shutil.which("promtool")


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian and Ubuntu: package prometheus)")
def test_promtool_finds_the_scraping_right() -> None:
    assert PROMTOOL is not None
    command = [PROMTOOL, "check", "config", str(DEPLOY / "prometheus" / "prometheus.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=40)
    assert done.returncode == 0, done.stdout + done.stderr


COMPOSE = os.environ.get("TIDEGATE_DOCKER_COMPOSE") or shutil.which("docker-compose")


@pytest.mark.skipif(COMPOSE is None, reason="docker-compose is not installed, nor named by TIDEGATE_DOCKER_COMPOSE")
def test_docker_compose_finds_the_file_right(environ: dict[str, str]) -> None:
    assert COMPOSE is not None
    command = [COMPOSE, "-f", str(DEPLOY / "compose.yaml"), "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=40, env={**os.environ, **environ})
    assert (done.returncode, done.stderr) == (0, "")
