"""TLS on the ports of sockets and of HTTP.

Rule: a context is made once and never changed. A new certificate is a new context, of which the next
handshake is, so what is in use always works; sockets that are open notice nothing.
"""

import contextlib
import datetime
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from orpheus_ws.config import ServerConfig
from orpheus_ws.errors import StartupError, unreadable

_NO_CHECK_TIME: Final = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL, which Python has no name for."""


class Validity(NamedTuple):
    """Of a certificate."""

    begins: datetime.datetime
    ends: datetime.datetime


class Certificate(NamedTuple):
    """What handshakes are made with, and until when clients take it."""

    context: ssl.SSLContext
    ends: datetime.datetime


def is_on(config: ServerConfig) -> bool:
    """Whether the ports speak TLS. Raises `StartupError` when only half of it is configured."""
    if bool(config.tls_certificate) != bool(config.tls_key):
        raise StartupError("set both server.tls_certificate and server.tls_key, or neither")
    return bool(config.tls_certificate)


def files(config: ServerConfig) -> tuple[Path, Path]:
    """Certificate and key."""
    return Path(config.tls_certificate), Path(config.tls_key)


def read(config: ServerConfig) -> Certificate:
    """The certificate as it is now. Blocks. Raises `StartupError`."""
    context = read_context(config)
    return Certificate(context, validity(context).ends)


def read_context(config: ServerConfig) -> ssl.SSLContext:
    """A context with the files as they are now. Blocks. Raises `StartupError`."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # OpenSSL 3 refuses it by itself.
    context.options |= ssl.OP_NO_RENEGOTIATION
    # A WebSocket is an upgrade of HTTP/1.1 here, and nothing speaks HTTP/2.
    context.set_alpn_protocols(["http/1.1"])
    _load(context, config)
    return context


def _load(context: ssl.SSLContext, config: ServerConfig) -> None:
    certificate, key = files(config)
    for file, setting in ((certificate, "tls_certificate"), (key, "tls_key")):
        try:
            file.open("rb").close()
        except OSError as error:
            otherwise = f"change server.{setting}"
            raise StartupError(f"cannot read {file} {unreadable(error, otherwise)}") from error
    try:
        # Nobody is there to be asked for a passphrase.
        context.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, OSError) as error:
        raise StartupError(
            f"{certificate} and {key} are no certificate and its key: both must be PEM, the key the "
            "certificate's own and without a passphrase"
        ) from error


def validity(context: ssl.SSLContext) -> Validity:
    """From when to when clients take the certificate of a context. Raises `StartupError` if none would.

    Found out as a client finds it out, by handshakes, in memory: of files that may have changed since it
    says nothing.
    """
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname = False
    asking.verify_mode = ssl.CERT_NONE
    shown = _handshake(context, asking).getpeercert(binary_form=True)
    assert shown
    # Whether its authority is known is for clients to say; here the certificate vouches for itself.
    asking.load_verify_locations(cadata=shown)
    asking.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    asking.verify_mode = ssl.CERT_REQUIRED
    try:
        found = _handshake(context, asking).getpeercert()
    except ssl.SSLError as error:
        raise StartupError(
            "no client would take what is in server.tls_certificate: make it a certificate for a server"
        ) from error
    assert found
    return Validity(_time(found["notBefore"]), _time(found["notAfter"]))


def _handshake(serving: ssl.SSLContext, asking: ssl.SSLContext) -> ssl.SSLObject:
    """The client's end of a handshake that is over."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = asking.wrap_bio(to_client, to_server, server_side=False)
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    for end in _alternating(client, server):
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
    return client


def _time(told: object) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(ssl.cert_time_to_seconds(str(told)), datetime.UTC)


def _alternating(*ends: ssl.SSLObject) -> Iterator[ssl.SSLObject]:
    """Each end three times in turn: more than the flights of a handshake."""
    for _ in range(3):
        yield from ends
