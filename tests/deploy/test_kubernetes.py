"""What matters in ``deploy/kubernetes``: manifests that fit Kubernetes' own schemas, the settings, and one another."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from deploy.compose_stage import DEPLOY, made_env
from tidegate import __version__
from tidegate.config import Settings, load_settings
from tidegate.gateway.app import HEALTH

FOLDER = DEPLOY / "kubernetes"
PAGE = (DEPLOY.parent / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
KUSTOMIZATIONS = sorted(FOLDER.glob("*/kustomization.yaml"))
VERSIONS = ("1.29", "1.37")
"""Of Kubernetes: the oldest that the page names, and the newest with a schema."""

Manifest = dict[str, Any]


def manifests(*folders: str) -> list[Manifest]:
    """Every manifest of some folders, kustomizations left out."""
    files = [file for folder in folders for file in sorted((FOLDER / folder).glob("*.yaml"))]
    names = ("kustomization.yaml", "tidegate.yaml")
    texts = [file.read_text(encoding="utf-8") for file in files if file.name not in names]
    return [document for text in texts for document in yaml.safe_load_all(text)]


def one(kind: str, name: str, folder: str = "base") -> Manifest:
    (found,) = [each for each in manifests(folder) if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def workloads() -> list[Any]:
    found = [each for each in manifests("base", "try") if each["kind"] in ("Deployment", "StatefulSet")]
    assert len(found) == 4
    return [pytest.param(each["spec"]["template"]["spec"], id=each["metadata"]["name"]) for each in found]


def pod() -> Manifest:
    return cast(Manifest, one("Deployment", "gateway")["spec"]["template"]["spec"])


def container() -> Manifest:
    (found,) = pod()["containers"]
    return cast(Manifest, found)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    environ, _ = made_env(tmp_path_factory.mktemp("env"))
    return load_settings(FOLDER / "base" / "tidegate.yaml", environ=environ)


def port(name: str) -> int:
    (found,) = [each["containerPort"] for each in container()["ports"] if each["name"] == name]
    return int(found)


def test_ports_are_those_of_the_settings(settings: Settings) -> None:
    assert (settings.gateway.listen.port, settings.control.listen.port) == (port("clients"), port("control"))
    for service, name in (("tidegate", "clients"), ("tidegate-control", "control")):
        (found,) = one("Service", service)["spec"]["ports"]
        assert (found["port"], found["targetPort"]) == (port(name), name)


@pytest.mark.parametrize(("probe", "path"), [("startup", "/livez"), ("liveness", "/livez"), ("readiness", "/readyz")])
def test_probes_ask_what_the_gateway_answers(probe: str, path: str) -> None:
    """A restart does not bring an engine back, so only readiness may depend on engines."""
    assert container()[f"{probe}Probe"]["httpGet"] == {"path": path, "port": "clients"}
    assert path in HEALTH


def test_nobody_is_killed_before_streams_have_had_their_time(settings: Settings) -> None:
    (_, before) = container()["lifecycle"]["preStop"]["exec"]["command"]
    assert pod()["terminationGracePeriodSeconds"] > int(before) + settings.gateway.drain_timeout
    probe = container()["readinessProbe"]
    assert int(before) > probe["periodSeconds"] * probe["failureThreshold"]


def test_a_rolling_update_never_has_fewer_and_waits_for_seats(settings: Settings) -> None:
    spec = one("Deployment", "gateway")["spec"]
    assert settings.cluster is not None
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert spec["minReadySeconds"] >= settings.cluster.lease_ttl
    assert settings.cluster.first_share * spec["replicas"] == 1
    assert one("PodDisruptionBudget", "gateway")["spec"]["maxUnavailable"] == 1


def test_settings_and_files_are_where_the_gateway_looks(settings: Settings) -> None:
    mounts = {mount["name"]: mount["mountPath"] for mount in container()["volumeMounts"]}
    assert settings.jobs is not None
    assert mounts["files"] == settings.jobs.files
    assert container()["args"] == ["serve", "-c", f"{mounts['settings']}/tidegate.yaml"]
    assert {volume["name"] for volume in pod()["volumes"]} == set(mounts)
    (generated,) = yaml.safe_load((FOLDER / "base" / "kustomization.yaml").read_text())["configMapGenerator"]
    assert generated["files"] == ["tidegate.yaml"]
    assert {"name": "settings", "configMap": {"name": generated["name"]}} in pod()["volumes"]


def test_everything_that_the_settings_want_is_in_the_secret_and_in_the_page(tmp_path: Path) -> None:
    wanted = set(re.findall(r"(?<!\$)\$\{(\w+)\}", (FOLDER / "base" / "tidegate.yaml").read_text()))
    assert wanted <= set(made_env(tmp_path)[0])
    assert [name for name in wanted if f"`{name}`" not in PAGE] == []
    assert container()["envFrom"] == [{"secretRef": {"name": "tidegate"}}]


def test_both_ways_to_deploy_run_the_same_settings() -> None:
    """They differ in where the engines are, and in comments."""

    def lines(path: str) -> list[str]:
        text = (DEPLOY / path).read_text(encoding="utf-8")
        plain = (re.sub(r"\s*#.*", "", line) for line in text.splitlines())
        return [line for line in plain if line and "engine-" not in line]

    assert lines("kubernetes/base/tidegate.yaml") == lines("compose/tidegate.yaml")


@pytest.mark.parametrize("spec", workloads())
def test_a_pod_may_do_little(spec: Manifest) -> None:
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for each in spec["containers"]:
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert set(each["resources"]["requests"]) == {"cpu", "memory"}
        assert set(each["resources"]["limits"]) == {"memory"}, "a limit of CPU stops streams"
        assert each["image"] == "tidegate" or re.fullmatch(r"[a-z/]+:\d+\.\d+(\.\d+)?-alpine", each["image"])
        assert "readinessProbe" in each


def test_gateways_run_as_the_user_of_the_image() -> None:
    assert f"USER {pod()['securityContext']['runAsUser']}:" in (DEPLOY / "Dockerfile").read_text()


def test_gateways_are_spread_over_machines_and_zones() -> None:
    keys = {each["topologyKey"] for each in pod()["topologySpreadConstraints"]}
    assert keys == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}


def test_the_control_port_is_not_open_to_everybody() -> None:
    rules = one("NetworkPolicy", "gateway")["spec"]["ingress"]
    open_to_all = [each["port"] for rule in rules if "from" not in rule for each in rule["ports"]]
    assert open_to_all == ["clients"]
    assert all(
        each["spec"].get("type", "ClusterIP") == "ClusterIP"
        for each in manifests("base", "try")
        if each["kind"] == "Service"
    )
    behind = one("NetworkPolicy", "behind-the-gateways", "try")["spec"]["podSelector"]["matchExpressions"][0]
    assert set(behind["values"]) == {"valkey", "postgres", "engine"}


def test_who_selects_pods_selects_the_gateways() -> None:
    labels = one("Deployment", "gateway")["spec"]["template"]["metadata"]["labels"]
    for kind, name in (("Service", "tidegate"), ("Service", "tidegate-control")):
        assert one(kind, name)["spec"]["selector"].items() <= labels.items()
    for kind, name in (("Deployment", "gateway"), ("PodDisruptionBudget", "gateway")):
        assert one(kind, name)["spec"]["selector"]["matchLabels"].items() <= labels.items()
    monitored = one("ServiceMonitor", "gateway", "monitoring")["spec"]
    assert (
        monitored["selector"]["matchLabels"].items() <= one("Service", "tidegate-control")["metadata"]["labels"].items()
    )
    assert [each["port"] for each in monitored["endpoints"]] == ["control"]


def test_the_autoscaler_leaves_nobody_alone_and_goes_down_slowly(settings: Settings) -> None:
    scaler = one("HorizontalPodAutoscaler", "gateway", "autoscaling")["spec"]
    assert scaler["scaleTargetRef"]["name"] == "gateway"
    assert scaler["minReplicas"] >= one("Deployment", "gateway")["spec"]["replicas"]
    (slow,) = scaler["behavior"]["scaleDown"]["policies"]
    assert slow["value"] == 1
    assert slow["periodSeconds"] > settings.gateway.drain_timeout


def test_the_version_of_the_image_is_ours() -> None:
    (image,) = yaml.safe_load((FOLDER / "base" / "kustomization.yaml").read_text())["images"]
    assert image["newTag"] == __version__


@pytest.mark.parametrize("file", KUSTOMIZATIONS, ids=lambda file: file.parent.name)
def test_kustomizations_name_what_is_there(file: Path) -> None:
    told = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert told["kind"] == ("Component" if "v1alpha1" in told["apiVersion"] else "Kustomization")
    for name in told["resources"]:
        assert (file.parent / name).exists()
    unused = {each.name for each in file.parent.glob("*.yaml")} - {*told["resources"], file.name, "tidegate.yaml"}
    assert unused == set()


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_fit_the_schemas_of_kubernetes(version: str) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    own = [each for each in manifests("base", "try", "autoscaling") if each["apiVersion"] != "monitoring.coreos.com/v1"]
    assert len(own) >= 15
    for each in own:
        validator.validate(each, version, strict=True)


KUBECTL = shutil.which("kubectl")


def built(folder: Path) -> list[Manifest]:
    assert KUBECTL is not None
    done = subprocess.run([KUBECTL, "kustomize", str(folder)], capture_output=True, text=True, timeout=18)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
def test_kubectl_builds_what_is_meant(tmp_path: Path) -> None:
    """The whole of ``try``, with both components on it."""
    shutil.copytree(FOLDER, tmp_path / "k", ignore=shutil.ignore_patterns("secrets.env"))
    shutil.copy(DEPLOY / "make_env.py", tmp_path)
    target = tmp_path / "k" / "try" / "secrets.env"
    subprocess.run(["python3", str(tmp_path / "make_env.py"), str(target)], check=True, capture_output=True)
    own = tmp_path / "k" / "own"
    own.mkdir()
    parts = {"resources": ["../try"], "components": ["../autoscaling", "../monitoring"]}
    (own / "kustomization.yaml").write_text(yaml.safe_dump(parts))
    found = {(each["kind"], each["metadata"]["name"]): each for each in built(own)}
    gateway = found["Deployment", "gateway"]["spec"]
    assert "replicas" not in gateway, "the autoscaler says how many"
    (only,) = gateway["template"]["spec"]["containers"]
    assert only["image"] == "tidegate:local"
    assert ("Secret", only["envFrom"][0]["secretRef"]["name"]) in found
    names = [volume["configMap"]["name"] for volume in gateway["template"]["spec"]["volumes"] if "configMap" in volume]
    assert re.fullmatch(r"settings-\w{10}", names[0])
    assert ("ConfigMap", names[0]) in found
    assert ("ServiceMonitor", "gateway") in found
    assert found["PersistentVolumeClaim", "files"]["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert {each["metadata"].get("namespace") for key, each in found.items() if key[0] != "Namespace"} == {"tidegate"}


def test_the_page_lists_every_alert() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "tidegate-alerts.yaml").read_text())["groups"][0]["rules"]
    assert [rule["alert"] for rule in rules if f"`{rule['alert']}`" not in PAGE] == []
