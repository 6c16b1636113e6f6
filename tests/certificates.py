"""Certificates for tests: an authority of their own, and what it signs.

Rule: written as operators write them, certificate and key in files of their own.
"""

import datetime
import os
import ssl
from pathlib import Path

import trustme

HOSTS = ("127.0.0.1", "localhost")


class Authority:
    """Signs for a folder."""

    def __init__(self, folder: Path) -> None:
        self.certificate = folder / "server.pem"
        self.key = folder / "server.key"
        self.file = folder / "ca.pem"
        self._ca = trustme.CA()
        self._ca.cert_pem.write_to_path(str(self.file))

    @property
    def settings(self) -> tuple[str, ...]:
        """Of a server with its certificate."""
        return (f"server.tls_certificate={self.certificate}", f"server.tls_key={self.key}")

    @property
    def context(self) -> ssl.SSLContext:
        """Of a client that trusts it, and nobody else."""
        return ssl.create_default_context(cafile=str(self.file))

    def issue(self, *, days: float = 90, hosts: tuple[str, ...] = HOSTS) -> str:
        """Write a fresh pair, good for so many days from now; return its serial number."""
        end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
        issued = self._ca.issue_cert(
            *hosts, not_before=end - datetime.timedelta(days=365), not_after=end
        )
        self.put(self.certificate, issued.cert_chain_pems[0].bytes())
        self.put(self.key, issued.private_key_pem.bytes())
        decoded = ssl._ssl._test_decode_cert(str(self.certificate))  # type: ignore[attr-defined]
        return str(decoded["serialNumber"])

    def put(self, file: Path, content: bytes) -> None:
        """Write a file as it should be done: whole, under another name, and then in its place."""
        fresh = file.with_suffix(".new")
        fresh.write_bytes(content)
        os.replace(fresh, file)  # noqa: PTH105 - the name of what it does
