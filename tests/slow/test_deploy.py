"""What is in `deploy/` fits the server, the schemas of Kubernetes, systemd, and itself."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import msgspec
import pytest
import yaml

from docs.generate import instruments
from orpheus_ws import config
from orpheus_ws.capacity import Capacity, settle
from orpheus_ws.cli import cli
from orpheus_ws.engine.trtllm_process import SHUTDOWN_SECONDS
from orpheus_ws.errors import StartupError
from orpheus_ws.manifest import NAME
from orpheus_ws.server import tls
from orpheus_ws.server.health import PROBE_SECONDS
from orpheus_ws.server.websocket import CLOSE_SECONDS
from tests.fleet import DEPLOY, program
from tests.manifests import measured
from tests.test_doctor_gpu import H100
from tests.test_doctor_gpu import program as program_of
from tests.test_hardware import FIRST, WHOLE

pytestmark = pytest.mark.slow

OVERLAYS = sorted(folder.name for folder in (DEPLOY / "kubernetes" / "overlays").iterdir())
DEVICES = {
    "h100": "nvidia.com/gpu",
    "h100-mig-3g.40gb": "nvidia.com/mig-3g.40gb",
    "cpu-demo": None,
}
DOCKERFILES = {
    name: "Dockerfile" if device else "Dockerfile.cpu" for name, device in DEVICES.items()
}
KUBERNETES = "1.32"
CHARACTERS_A_SECOND = 15
"""Of speech, as the simulated engine has it."""

Manifest = dict[str, Any]


def read(*parts: str) -> str:
    """A file of `deploy/`."""
    return DEPLOY.joinpath(*parts).read_text(encoding="utf-8")


def built(overlay: str, *parts: str) -> dict[str, Manifest]:
    """What kustomize makes of an overlay, by kind; of Services the one for clients."""
    return kustomized(DEPLOY.joinpath("kubernetes", "overlays", overlay, *parts))


def kustomized(folder: Path) -> dict[str, Manifest]:
    """What kustomize makes of a folder, by kind; of Services the one for clients."""
    line = [program("kubectl"), "kustomize", str(folder)]
    text = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60).stdout
    found = list(yaml.safe_load_all(text))
    return {
        manifest["kind"]: manifest
        for manifest in found
        if manifest["metadata"]["name"] != "orpheus-ws-replicas"
    }


def server(manifests: dict[str, Manifest], kind: str = "Deployment") -> Manifest:
    """The container of the Deployment, or of another kind."""
    (container,) = manifests[kind]["spec"]["template"]["spec"]["containers"]
    found: Manifest = container
    return found


def configured(container: Manifest, dockerfile: str) -> config.Config:
    """What `serve` would be told by the image's environment and the container's own."""
    image = " ".join(read("container", dockerfile).replace("\\\n", " ").splitlines())
    environment = dict(re.findall(r"(ORPHEUS_WS_\w+)=(\S+)", image))
    environment |= {each["name"]: each["value"] for each in container.get("env", ())}
    return config.load(environment=environment)


def test_every_overlay_is_tested() -> None:
    """The devices that the tests know are those that there are overlays for."""
    assert set(OVERLAYS) == set(DEVICES)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlays_are_valid(overlay: str) -> None:
    """Every manifest fits the schema of its kind, without a field that the schema does not have."""
    manifests = built(overlay)
    assert {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"} <= set(manifests)
    for kind, manifest in manifests.items():
        if kind != "ScaledObject":  # KEDA's own; `test_autoscaling` looks at it
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nobody_is_cut_off_by_kubernetes(overlay: str) -> None:
    """The longest utterance ends before the drain does, and the drain before the pod is killed."""
    manifests = built(overlay)
    container = server(manifests)
    loaded = configured(container, DOCKERFILES[overlay])
    grace = manifests["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    before = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = loaded.server.drain_seconds
    assert loaded.limits.text_chars / CHARACTERS_A_SECOND < drain
    assert grace > before + drain + CLOSE_SECONDS + SHUTDOWN_SECONDS


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_container_fits_the_server(overlay: str) -> None:
    """Ports are the server's, for HTTP as well if it has one; probes wait for as long as it may take.

    CPUs are whole ones, and the device is asked for.
    """
    manifests = built(overlay)
    container = server(manifests)
    loaded = configured(container, DOCKERFILES[overlay])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    over_http = {} if loaded.server.http_port is None else {"http": loaded.server.http_port}
    open_ports = {"ws": loaded.server.port, **over_http}
    assert ports == open_ports | {"metrics": loaded.server.metrics_port}
    reached = {port["name"]: port["port"] for port in manifests["Service"]["spec"]["ports"]}
    assert reached == open_ports
    let_in = manifests["NetworkPolicy"]["spec"]["ingress"][0]["ports"]
    assert [port["port"] for port in let_in] == list(open_ports)
    paths = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("liveness", "startup")}
    assert set(paths.values()) == {"/healthz"}
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["readinessProbe"]["timeoutSeconds"] > PROBE_SECONDS
    limits, requests = (container["resources"][name] for name in ("limits", "requests"))
    device = DEVICES[overlay]
    assert limits.pop(device, None) == (None if device is None else "1")
    assert limits == requests
    assert int(limits["cpu"]) >= 2
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert loaded.engine.name == ("pocket" if overlay == "cpu-demo" else "trtllm")


def uncommented(overlay: str, folder: Path, *lines: str) -> dict[str, Manifest]:
    """What is built of an overlay, or of a folder in one, once the `#` before these lines is taken away."""
    kubernetes = shutil.copytree(DEPLOY / "kubernetes", folder / "kubernetes")
    file = kubernetes / "overlays" / overlay / "kustomization.yaml"
    text = file.read_text(encoding="utf-8")
    for line in lines:
        assert f" # - {line}\n" in text
        text = text.replace(f" # - {line}", f" - {line}")
    file.write_text(text)
    return kustomized(file.parent)


def with_components(overlay: str, folder: Path, *names: str) -> dict[str, Manifest]:
    """What is built of an overlay with these components."""
    return uncommented(overlay, folder, *(f"../../components/{name}" for name in names))


@pytest.mark.parametrize("overlay", sorted(set(OVERLAYS) - {"cpu-demo"}))
def test_an_objective_of_ones_own(overlay: str, tmp_path: Path) -> None:
    """Without its `#`, the line for voices that begin with silence gives `calibrate` what it takes."""
    path = "/spec/template/spec/containers/0/args/-"
    line = f"{{op: add, path: {path}, value: --objective-ms=800}}"
    manifests = uncommented(f"{overlay}/calibrate", tmp_path, line)
    kubernetes_validate.validate(manifests["Job"], KUBERNETES, strict=True)
    _, name, *arguments = server(manifests, "Job")["args"]
    assert cli.commands[name].make_context(name, arguments).params["objective_ms"] == 800


@pytest.mark.parametrize("others", [(), ("tls",)], ids=["alone", "tls"])
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_keys_from_a_file(overlay: str, others: tuple[str, ...], tmp_path: Path) -> None:
    """With the component for it the keys are those of a file that can change, and none is in the environment."""
    manifests = with_components(overlay, tmp_path, "keys", *others)
    kubernetes_validate.validate(manifests["Deployment"], KUBERNETES, strict=True)
    container = server(manifests)
    assert "envFrom" not in container
    assert "envFrom" in server(built(overlay))
    mounted = {each["name"]: each for each in container["volumeMounts"]}["keys"]
    assert mounted["readOnly"]
    assert "subPath" not in mounted  # what is mounted so never changes
    file = Path(configured(container, DOCKERFILES[overlay]).auth.file)
    assert (str(file.parent), file.name) == (mounted["mountPath"], "keys.toml")
    volumes = manifests["Deployment"]["spec"]["template"]["spec"]["volumes"]
    (secret,) = [each["secret"]["secretName"] for each in volumes if each["name"] == "keys"]
    told = read("kubernetes", "components", "keys", "kustomization.yaml")
    assert f"create secret generic {secret} --from-file={file.name}" in told


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_tls(overlay: str, tmp_path: Path) -> None:
    """With the component for it the server speaks TLS, and no probe asks for it where it is not spoken."""
    manifests = with_components(overlay, tmp_path, "tls")
    container = server(manifests)
    for kind in ("Deployment", "Service"):
        kubernetes_validate.validate(manifests[kind], KUBERNETES, strict=True)
    loaded = configured(container, DOCKERFILES[overlay])
    assert tls.is_on(loaded.server)
    mounted = {each["name"]: each for each in container["volumeMounts"]}["tls"]
    assert mounted["readOnly"]
    assert {str(path.parent) for path in tls.files(loaded.server)} == {mounted["mountPath"]}
    volumes = manifests["Deployment"]["spec"]["template"]["spec"]["volumes"]
    assert [each["secret"]["secretName"] for each in volumes if each["name"] == "tls"]
    plain = server(built(overlay))
    for name in ("startup", "liveness", "readiness"):
        probe, without = container[f"{name}Probe"], plain[f"{name}Probe"]
        asked, asked_without = probe.pop("httpGet"), without.pop("httpGet")
        assert (probe, asked["path"]) == (without, asked_without["path"])
        assert (asked["port"], asked.get("scheme")) in (("metrics", None), ("ws", "HTTPS"))
    assert asked["port"] == "ws"
    assert manifests["Service"]["spec"]["ports"][0]["appProtocol"] == "kubernetes.io/wss"


@pytest.mark.parametrize("name", sorted(set(DOCKERFILES.values())))
def test_health_of_a_container(name: str) -> None:
    """It is asked for where no TLS is spoken, whatever the configuration."""
    (address,) = re.findall(r"urlopen\('(http:[^']+)'", read("container", name))
    assert address == f"http://127.0.0.1:{config.ServerConfig().metrics_port}/healthz"


@pytest.mark.parametrize("overlay", [name for name in OVERLAYS if DEVICES[name]])
def test_calibration(overlay: str) -> None:
    """What measures is the server's container in all that matters, and may write where that may only read.

    It is nobody's replica: no Service sends a socket there.
    """
    serving, measuring = built(overlay), built(overlay, "calibrate")
    assert set(measuring) == {"Job"}
    kubernetes_validate.validate(measuring["Job"], KUBERNETES, strict=True)
    claim = yaml.safe_load(read("kubernetes", "models.yaml"))
    kubernetes_validate.validate(claim, KUBERNETES, strict=True)
    pods = [each["spec"]["template"] for each in (serving["Deployment"], measuring["Job"])]
    containers = [server(serving), server(measuring, "Job")]
    assert [each["args"][1] for each in containers] == ["serve", "calibrate"]
    assert {"serve", "calibrate"} <= set(cli.commands)
    engines = [configured(each, DOCKERFILES[overlay]).engine for each in containers]
    assert engines[0] == engines[1]
    for pod, container, read_only in zip(pods, containers, (True, False), strict=True):
        volume, mount = pod["spec"]["volumes"].pop(0), container["volumeMounts"].pop(0)
        claimed = {"claimName": claim["metadata"]["name"], "readOnly": read_only}
        assert volume == {"name": "models", "persistentVolumeClaim": claimed}
        assert mount == {"name": "models", "mountPath": "/models", "readOnly": read_only}
    for same in ("image", "resources", "securityContext", "volumeMounts"):
        assert containers[0][same] == containers[1][same]
    for same in ("volumes", "securityContext", "tolerations", "automountServiceAccountToken"):
        assert pods[0]["spec"][same] == pods[1]["spec"][same]
    labels = pods[1]["metadata"]["labels"].items()
    assert serving["Service"]["spec"]["selector"].items().isdisjoint(labels)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_capacity_is_what_was_measured(overlay: str, tmp_path: Path) -> None:
    """A replica on a GPU serves what the manifest has for that GPU, and without that it does not start."""
    loaded = configured(server(built(overlay)), DOCKERFILES[overlay]).engine
    if DEVICES[overlay] is None:
        assert settle(loaded).source == "default"
        return
    here = loaded.options | {"model": str(tmp_path)}
    engine = msgspec.structs.replace(loaded, options=here)
    environment = program_of(
        tmp_path, "nvidia-smi", f"[ $1 = -L ] && echo '{FIRST}' || echo '{H100}'"
    )
    with pytest.raises(StartupError, match="orpheus-ws calibrate"):
        settle(engine, environment)
    measured(tmp_path / NAME, 216, engine, WHOLE)
    assert settle(engine, environment) == Capacity(216, "measured")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_autoscaling(overlay: str) -> None:
    """The autoscaler scales the Deployment, slowly down, on metrics that the server has."""
    manifests = built(overlay)
    scaler = manifests.get("ScaledObject") or manifests["HorizontalPodAutoscaler"]
    spec = scaler["spec"]
    assert spec["scaleTargetRef"]["name"] == manifests["Deployment"]["metadata"]["name"]
    assert "replicas" not in manifests["Deployment"]["spec"]
    if overlay == "cpu-demo":
        rules = yaml.safe_load(read("kubernetes", "components", "hpa", "adapter-rules.yaml"))
        names = [each["pods"]["metric"]["name"] for each in spec["metrics"]]
        assert names == [rule["name"]["as"] for rule in rules]
        known = {instrument.name for instrument in instruments()}
        for rule in rules:
            read_there = re.findall(r"orpheus_\w+", rule["seriesQuery"] + rule["metricsQuery"])
            assert read_there
            assert set(read_there) <= known
        behavior = spec["behavior"]
    else:
        (recorded,) = re.findall(r"job:\w+:ratio", spec["triggers"][0]["metadata"]["query"])
        assert f"record: {recorded}\n" in read("prometheus", "recording.yml")
        behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior["scaleDown"]["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 300}]


def seconds(text: str) -> float:
    """A time as proxies and systemd write it."""
    number, unit = re.fullmatch(r"(\d+)(ms|s|min)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"ms": 0.001, "s": 1, "min": 60}[unit]


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("haproxy/haproxy.cfg", r"timeout tunnel (\w+)"),
        ("nginx/nginx.conf", r"proxy_read_timeout (\w+)"),
        ("envoy/envoy.yaml", r"stream_idle_timeout: (\w+)"),
    ],
)
def test_proxies_wait_for_pings(file: str, pattern: str) -> None:
    """A living socket that says nothing outlasts a proxy's patience, by three pings."""
    (patience,) = re.findall(pattern, read(file))
    assert seconds(patience) > 3 * config.ServerConfig().ping_seconds


def test_checks_wait_for_the_probe() -> None:
    """Health checks of proxies give /readyz the time that it may take."""
    (haproxy,) = re.findall(r"timeout check (\w+)", read("haproxy", "haproxy.cfg"))
    (envoy,) = re.findall(r"health_checks: &ready\s+- timeout: (\w+)", read("envoy", "envoy.yaml"))
    assert min(seconds(haproxy), seconds(envoy)) > PROBE_SECONDS


def test_systemd_units(tmp_path: Path) -> None:
    """systemd understands the units, finds the server little exposed, and lets it drain."""
    units = []
    for file in sorted((DEPLOY / "systemd").glob("*.service")):
        # The programs are not installed here, and systemd looks for them.
        text = re.sub(r"(?m)^(ExecStart=)\S+", r"\1/bin/true", file.read_text(encoding="utf-8"))
        units.append(tmp_path / file.name)
        units[-1].write_text(text, encoding="utf-8")
    analyze = program("systemd-analyze")
    verify = [analyze, "verify", *map(str, units)]
    checked = subprocess.run(verify, capture_output=True, text=True, check=False, timeout=60)
    assert (checked.returncode, checked.stderr) == (0, "")
    line = f"{analyze} security --offline=true --threshold=25 {units[-1]}"
    subprocess.run(shlex.split(line), capture_output=True, check=True, timeout=60)
    unit = read("systemd", "orpheus-ws.service")
    (patience,) = re.findall(r"TimeoutStopSec=(\w+)", unit)
    drain = config.ServerConfig().drain_seconds
    assert seconds(patience) > drain + CLOSE_SECONDS + SHUTDOWN_SECONDS


@pytest.mark.parametrize(
    ("mps", "daemon", "ending"),
    [
        ("on", "echo started $1", (0, "started -d\nserving\n")),
        ("on", "exit 1", (1, "")),
        ("off", "echo started $1", (0, "serving\n")),
    ],
)
def test_the_entry_point(mps: str, daemon: str, ending: tuple[int, str], tmp_path: Path) -> None:
    """It starts MPS before the server, or not if it is told so; without MPS there is no server."""
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text(f"#!/bin/sh\n{daemon}\n")
    control.chmod(0o755)
    environment = {"MPS": mps, "PATH": f"{tmp_path}:/usr/bin:/bin"}
    environment |= {f"CUDA_MPS_{name}_DIRECTORY": str(tmp_path / name) for name in ("PIPE", "LOG")}
    line = [str(DEPLOY / "container" / "entrypoint.sh"), "echo", "serving"]
    run = subprocess.run(
        line, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert (run.returncode, run.stdout) == ending
    assert ("MPS=off" in run.stderr) == (run.returncode != 0)
