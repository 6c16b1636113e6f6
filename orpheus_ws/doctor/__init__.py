"""What can be found out about a machine and a configuration before serving on it.

Rule: what is said was found out here and now, or is said to be unknown. Nothing is opened that takes
long, nothing is changed and no port stays bound. A `problem` is what `serve` would stop at. Keys are
counted and never shown. Other programs and libraries are asked through `gpu`, `packages` and
`parts`, where whatever they raise or print becomes a finding.
"""

from collections.abc import Mapping

import msgspec

import orpheus_ws
from orpheus_ws.config import Config
from orpheus_ws.doctor import gpu, machine, network, packages, parts
from orpheus_ws.doctor.check import Check, Status
from orpheus_ws.errors import StartupError
from orpheus_ws.server.admission import sockets_for


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was found. `problems` and `warnings` count the checks of that status."""

    version: str
    problems: int
    warnings: int
    checks: tuple[Check, ...]


def examine(config: Config | StartupError, environment: Mapping[str, str]) -> Report:
    """Run every check. A configuration that cannot be loaded is a finding too.

    Takes a few seconds, most of them for importing torch. `environment` says where CUDA's programs
    are and which devices they see.
    """
    checks = [
        machine.python(),
        machine.processors(),
        machine.event_loop(),
        network.socket_options(),
        *packages.examine(),
    ]
    if isinstance(config, StartupError):
        checks += gpu.examine(environment, engine_device=None, codec_device=None)
        checks.append(Check("configuration", Status.PROBLEM, "cannot be used", str(config)))
    else:
        checks += _configured(config, environment)
    return Report(
        version=orpheus_ws.__version__,
        problems=sum(check.status is Status.PROBLEM for check in checks),
        warnings=sum(check.status is Status.WARNING for check in checks),
        checks=tuple(checks),
    )


def _configured(config: Config, environment: Mapping[str, str]) -> list[Check]:
    engine = parts.engine(config.engine, environment)
    codec = parts.codec(config, engine.capacity)
    sockets = None
    if engine.capacity is not None:
        sockets = sockets_for(engine.capacity, config.server.oversubscription)
    return [
        *gpu.examine(environment, engine_device=engine.device, codec_device=codec.device),
        Check("configuration", Status.OK, "can be read"),
        engine.check,
        codec.check,
        machine.open_files(sockets, tls=bool(config.server.tls_certificate)),
        network.access(config),
        network.certificate(config.server),
        *network.ports(config.server),
        parts.tracing(config.tracing),
    ]
