"""TLS on the ports of sockets and of HTTP.

Rule: a context is made once and never changed. A new certificate is a new context, of which the next
handshake is, so what is in use always works; sockets that are open notice nothing.
"""

import datetime
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from orpheus_ws.config import ServerConfig
from orpheus_ws.errors import StartupError, unreadable

EXPIRED: Final = 10
NOT_YET_VALID: Final = 9
"""X509_V_ERR_CERT_HAS_EXPIRED and X509_V_ERR_CERT_NOT_YET_VALID."""


def is_on(config: ServerConfig) -> bool:
    """Whether the ports speak TLS. Raises `StartupError` when only half of it is configured."""
    if bool(config.tls_certificate) != bool(config.tls_key):
        raise StartupError("set both server.tls_certificate and server.tls_key, or neither")
    return bool(config.tls_certificate)


def files(config: ServerConfig) -> tuple[Path, Path]:
    """Certificate and key."""
    return Path(config.tls_certificate), Path(config.tls_key)


def read_context(config: ServerConfig) -> ssl.SSLContext:
    """A context with the files as they are now. Blocks. Raises `StartupError`."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
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


def expires(config: ServerConfig) -> datetime.datetime | None:
    """When clients will refuse the certificate; None if they do already. Raises `StartupError`.

    Found out as a client finds it out, by a handshake, in memory.
    """
    serving = read_context(config)
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname = False
    # Whether its authority is known is for clients to say; here the certificate vouches for itself.
    asking.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    asking.load_verify_locations(config.tls_certificate)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = asking.wrap_bio(to_client, to_server, server_side=False)
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    try:
        for end in _alternating(client, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in (EXPIRED, NOT_YET_VALID):
            return None
        raise StartupError(
            f"no client would take {config.tls_certificate}: make it a certificate for a server"
        ) from error
    found = client.getpeercert()
    assert found
    seconds = ssl.cert_time_to_seconds(str(found["notAfter"]))
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


def _alternating(*ends: ssl.SSLObject) -> Iterator[ssl.SSLObject]:
    """Each end three times in turn: more than the flights of a handshake."""
    for _ in range(3):
        yield from ends
