"""The compose file is valid, and its parts fit each other and the server, engines included."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orpheus_ws import config
from orpheus_ws.capacity import settle
from orpheus_ws.errors import StartupError
from orpheus_ws.server import auth
from orpheus_ws.server.admission import sockets_for
from tests import promql

FOLDER = promql.ROOT / "deploy" / "compose"
FILE = FOLDER / "compose.yaml"
COMPOSED: dict[str, Any] = promql.read(FILE)
SERVICES: dict[str, dict[str, Any]] = COMPOSED["services"]
REPLICAS = ("replica1", "replica2", "gpu")
HTTP_PORT = 8780


def environment(service: dict[str, Any]) -> dict[str, str]:
    """What a container gets: of its image, and of the example of a file where it reads one."""
    found: dict[str, str] = {}
    if build := service.get("build"):
        file = FOLDER / build["context"] / build["dockerfile"]
        found |= dict(re.findall(r"(ORPHEUS_WS_\w+)=(\S+)", file.read_text(encoding="utf-8")))
    for name in service.get("env_file", ()):
        lines = (FOLDER / f"{name}.example").read_text(encoding="utf-8").splitlines()
        found |= dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    found |= service.get("environment", {})
    return found


def test_schema() -> None:
    """The file is what the Compose specification allows."""
    command = [sys.executable, "-W", "ignore", "-m", "check_jsonschema"]
    command += ["--builtin-schema", "vendor.compose-spec", str(FILE)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("name", SERVICES)
def test_hardened(name: str) -> None:
    """Every container has a read-only root and no rights, and listens on this machine only."""
    service = SERVICES[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_files() -> None:
    """What is mounted and built from this repository is there."""
    for service in SERVICES.values():
        for mounted in service.get("volumes", ()):
            source = mounted.split(":")[0]
            if source.startswith("../"):
                assert (FOLDER / source).exists(), source
        if build := service.get("build"):
            assert (FOLDER / build["context"] / build["dockerfile"]).exists()


def test_profiles() -> None:
    """A profile has a proxy, Prometheus, Grafana and at least one replica; one measures, alone."""
    watching = {"prometheus", "grafana"}
    profiles: dict[str, set[str]] = {}
    for name, service in SERVICES.items():
        for profile in service["profiles"]:
            profiles.setdefault(profile, set()).add(name)
    assert profiles == {
        "cpu": {"replica1", "replica2", "proxy", *watching},
        "gpu": {"gpu", "proxy-gpu", *watching},
        "calibrate": {"calibrate"},
    }


@pytest.mark.parametrize("name", REPLICAS)
def test_replicas_are_configured(name: str) -> None:
    """A replica's variables are the server's, it may listen where it does, and has time to drain."""
    service = SERVICES[name]
    loaded = config.load(environment=environment(service))
    auth.check_exposure(loaded.auth, loaded.server.host)
    assert loaded.server.host == loaded.server.metrics_host == "0.0.0.0"
    ports = [loaded.server.port, HTTP_PORT, loaded.server.metrics_port]
    assert service["expose"] == list(map(str, ports))
    assert int(service["stop_grace_period"].rstrip("s")) > loaded.server.drain_seconds + 10


def offered(name: str) -> dict[str, str]:
    """The variables that its example offers: HTTP, and a trial without a measurement."""
    files = [FOLDER / f"{file}.example" for file in SERVICES[name].get("env_file", ())]
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    return dict(re.findall(r"^#(ORPHEUS_WS_\w+)=(\S+)$", text, re.MULTILINE))


def test_a_capacity_has_to_be_measured() -> None:
    """The replica with a GPU starts when its capacity was measured, or somebody says that it was not."""
    loaded = config.load(environment=environment(SERVICES["gpu"])).engine
    with pytest.raises(StartupError, match="orpheus-ws calibrate"):
        settle(loaded)
    trial = config.load(environment=environment(SERVICES["gpu"]) | offered("gpu")).engine
    assert settle(trial).source == "uncalibrated"


def test_calibration() -> None:
    """What measures is the replica's image on the same device, and may write where that may only read."""
    replica, measuring = SERVICES["gpu"], SERVICES["calibrate"]
    assert measuring["command"] == ["orpheus-ws", "calibrate"]
    for same in ("image", "build", "deploy", "shm_size", "tmpfs"):
        assert measuring[same] == replica[same]
    assert replica["volumes"] == [f"{volume}:ro" for volume in measuring["volumes"]]
    assert not measuring.get("ports")


@pytest.mark.parametrize("name", ["proxy", "proxy-gpu"])
def test_proxies(name: str) -> None:
    """A proxy knows the replicas of its profile, and what they hold."""
    proxy = SERVICES[name]
    variables = environment(proxy)
    behind = [other for other in REPLICAS if SERVICES[other]["profiles"] == proxy["profiles"]]
    addresses = [value for key, value in variables.items() if key.startswith("REPLICA_")]
    assert addresses == [f"{replica}:8765" for replica in behind]
    over_http = [value for key, value in variables.items() if key.startswith("HTTP_")]
    assert over_http == [f"{replica}:{HTTP_PORT}" for replica in behind]
    assert proxy["depends_on"] == behind
    for replica in behind:
        loaded = config.load(environment=environment(SERVICES[replica]) | offered(replica))
        streams = settle(loaded.engine).streams
        assert streams is not None
        sockets = sockets_for(streams, loaded.server.oversubscription)
        assert sockets == int(variables["SOCKETS"])
        assert loaded.server.http_port == HTTP_PORT
    (template,) = (mounted.split(":")[0] for mounted in proxy["volumes"])
    used = set(re.findall(r"\$\{(\w+)", (FOLDER / template).read_text(encoding="utf-8")))
    assert {key for key in variables if not key.startswith("ORPHEUS_WS_")} <= used


def test_prometheus_finds_them() -> None:
    """The names that Prometheus asks for are those of the replicas and of the proxies."""
    scraped = promql.read(promql.PROMETHEUS / "prometheus-dns.yml")["scrape_configs"]
    found = {}
    for job in scraped:
        (discovery,) = job["dns_sd_configs"]
        (name,) = discovery["names"]
        found[job["job_name"]] = {
            service: discovery["port"]
            for service, described in SERVICES.items()
            if name in described.get("networks", {}).get("default", {}).get("aliases", ())
        }
    assert found == {
        "orpheus": dict.fromkeys(REPLICAS, 9464),
        "haproxy": {"proxy": 8405, "proxy-gpu": 8405},
    }
    for name in found["haproxy"]:
        assert environment(SERVICES[name])["METRICS"] == ":8405"


def test_grafana_finds_prometheus() -> None:
    """The data source is the Prometheus of this file, and the dashboard is where Grafana looks."""
    folder = promql.ROOT / "deploy" / "grafana" / "provisioning"
    (source,) = promql.read(folder / "datasources" / "prometheus.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert "127.0.0.1:9090:9090" in SERVICES["prometheus"]["ports"]
    (provider,) = promql.read(folder / "dashboards" / "orpheus.yml")["providers"]
    mounted = [volume.split(":") for volume in SERVICES["grafana"]["volumes"]]
    inside = {where: FOLDER / source for source, where, *_ in mounted}
    assert list(inside[provider["options"]["path"]].glob("*.json"))
    home = Path(SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (inside[str(home.parent)] / home.name).samefile(promql.DASHBOARD)
    page = Path(promql.variables()["runbook"]["query"])
    public = Path("/usr/share/grafana")
    assert (inside[f"{public}{page.parent}"] / page.name).exists()
