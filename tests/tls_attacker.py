"""A client that does with TLS what Python's own `ssl` does not let anybody do.

Rule: OpenSSL itself, the one that Python has loaded, called directly on a blocking socket. For threads.
"""

import _ssl
import ctypes
import socket
from types import TracebackType
from typing import Self

_OPENSSL = ctypes.CDLL(_ssl.__file__)
for _name in ("TLS_client_method", "SSL_CTX_new", "SSL_new"):
    getattr(_OPENSSL, _name).restype = ctypes.c_void_p
_SET_MIN, _SET_MAX = 123, 124
"""SSL_CTRL_SET_MIN_PROTO_VERSION and SSL_CTRL_SET_MAX_PROTO_VERSION."""
TLS_1_2, TLS_1_3 = 0x303, 0x304


class TlsAttacker:
    """A connection after its handshake, of this version of TLS. It believes any certificate."""

    def __init__(self, port: int, version: int = TLS_1_3) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._context = ctypes.c_void_p(
            _OPENSSL.SSL_CTX_new(ctypes.c_void_p(_OPENSSL.TLS_client_method()))
        )
        for what in (_SET_MIN, _SET_MAX):
            assert _OPENSSL.SSL_CTX_ctrl(self._context, what, version, None)
        self._ssl = ctypes.c_void_p(_OPENSSL.SSL_new(self._context))
        assert _OPENSSL.SSL_set_fd(self._ssl, self._socket.fileno())
        assert _OPENSSL.SSL_connect(self._ssl) == 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        _OPENSSL.SSL_free(self._ssl)
        _OPENSSL.SSL_CTX_free(self._context)
        self._socket.close()

    def write(self, data: bytes) -> bool:
        """Send data as a record of its own; whether that went."""
        return int(_OPENSSL.SSL_write(self._ssl, data, len(data))) == len(data)

    def read(self, until: bytes = b"") -> bytes:
        """What comes, up to something or to the end."""
        heard = b""
        buffer = ctypes.create_string_buffer(65_536)
        while not until or until not in heard:
            size = int(_OPENSSL.SSL_read(self._ssl, buffer, len(buffer)))
            if size <= 0:
                break
            heard += buffer.raw[:size]
        return heard

    def update_key(self, *, ask: bool) -> bool:
        """Change the key, and `ask` the server to do so, too; whether that could be sent."""
        assert _OPENSSL.SSL_key_update(self._ssl, int(ask)) == 1
        return int(_OPENSSL.SSL_do_handshake(self._ssl)) == 1

    def renegotiate(self) -> bool:
        """Begin another handshake in TLS 1.2; whether it came to an end."""
        assert _OPENSSL.SSL_renegotiate(self._ssl) == 1
        return int(_OPENSSL.SSL_do_handshake(self._ssl)) == 1
