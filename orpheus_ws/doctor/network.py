"""The network: options of sockets, who may connect, whether the ports are free."""

import contextlib
import datetime
import socket
from typing import Final

from orpheus_ws.config import Config, ServerConfig
from orpheus_ws.doctor.check import Check, Status
from orpheus_ws.errors import StartupError
from orpheus_ws.keys import read_keys
from orpheus_ws.named_parts import load_part
from orpheus_ws.server import auth, tls
from orpheus_ws.server.tcp import UNSENT_LOW_WATER_BYTES, USER_TIMEOUT_MS

OPTIONS: Final = {
    "TCP_NOTSENT_LOWAT": (UNSENT_LOW_WATER_BYTES, "the kernel holds more audio of slow clients"),
    "TCP_USER_TIMEOUT": (USER_TIMEOUT_MS, "dead clients are noticed late"),
}
"""The options that not every system has, as `serve` sets them, and what is worse without."""


EXPIRY_NOTICE: Final = datetime.timedelta(days=14)
"""Of a certificate: nobody who renews by hand does it in less."""


def socket_options() -> Check:
    """Whether the system's sockets take the options that `serve` sets."""
    taken, worse = [], []
    for name, (value, consequence) in OPTIONS.items():
        number = getattr(socket, name, None)
        if number is not None and _takes(number, value):
            taken.append(name)
        else:
            worse.append(f"without {name} {consequence}")
    found = ", ".join(taken) or "none of them"
    if worse:
        advice = "; ".join(worse) + ": Linux has both"
        return Check("socket_options", Status.WARNING, found, advice)
    return Check("socket_options", Status.OK, found)


def _takes(number: int, value: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, number, value)
        except OSError:
            return False
        return True


def access(config: Config) -> Check:
    """Who may connect. Keys are counted, not shown."""
    try:
        keys = read_keys(config.auth)
    except StartupError as error:
        return Check("access", Status.PROBLEM, "the keys cannot be read", str(error))
    count = len(keys)
    who = f"{count} key{'' if count == 1 else 's'}" if keys.required else "without a key"
    found = f"{who}, on {config.server.host}"
    try:
        auth.check_exposure(config.auth, config.server.host)
    except StartupError as error:
        return Check("access", Status.PROBLEM, found, str(error))
    return Check("access", Status.OK, found)


def certificate(config: ServerConfig) -> Check:
    """Whether the files of TLS can be used, and for how long."""
    name = "certificate"
    try:
        if not tls.is_on(config):
            return Check(name, Status.ABSENT, "no TLS")
        begin, end = tls.validity(tls.read_context(config))
    except StartupError as error:
        return Check(name, Status.PROBLEM, "cannot be used", str(error))
    advice = "put another there in time; it is read without a restart"
    now = datetime.datetime.now(datetime.UTC)
    if not begin <= now < end:
        return Check(name, Status.WARNING, "not valid now: clients refuse it", advice)
    found = f"valid until {end:%Y-%m-%d %H:%M} UTC"
    if end - now < EXPIRY_NOTICE:
        return Check(name, Status.WARNING, found, advice)
    return Check(name, Status.OK, found)


def ports(config: ServerConfig) -> list[Check]:
    """Whether `serve` could listen where it is told to. All ports are free again afterwards."""
    wanted = [
        ("port", config.host, config.port),
        ("metrics_port", config.metrics_host, config.metrics_port),
    ]
    if config.http_port is not None:
        wanted.append(("http_port", config.host, config.http_port))
    with contextlib.ExitStack() as stack:
        # The first stays bound while the others are tried: they may be the same.
        checks = [_port(stack, *place) for place in wanted]
    return [_with_http(check) if check.name == "http_port" else check for check in checks]


def _with_http(port: Check) -> Check:
    """Of the port of HTTP, unless what would listen there is not installed."""
    try:
        load_part("orpheus_ws.server", "http", "HttpFront", extra="http")
    except StartupError as error:
        return Check(port.name, Status.PROBLEM, "nothing can listen there", str(error))
    return port


def _port(stack: contextlib.ExitStack, name: str, host: str, port: int) -> Check:
    place = f"{host}:{port or 'any'}"
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            sock = stack.enter_context(socket.socket(family, kind, protocol))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            # Two sockets may be bound to a port, but only one may listen.
            sock.listen()
    except OSError as error:
        return Check(
            name,
            Status.PROBLEM,
            f"cannot listen on {place}: {error.strerror}",
            f"stop what listens there, change server.{name}, or use 0 for a free port",
        )
    return Check(name, Status.OK, f"{place} is free")
