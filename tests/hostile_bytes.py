"""Bytes that are not what a port expects, or nearly are. Seeded: a seed is one way to begin a connection.

Rule: nothing here looks at a server; what is to be sent is made beforehand.
"""

import base64
import random
from collections.abc import Callable
from typing import Final

SECRET: Final = b"zqxjkv"
"""In all that is sent, so that it is found where it should not be repeated."""
CONTROL: Final = (*range(1, 9), *range(14, 32), 127)
"""Control characters that are no white space."""
_TLS_HELLO: Final = (
    bytes.fromhex("16030100c8010000c40303" + "5a" * 32 + "20" + "a5" * 32)
    + bytes.fromhex("0006130113021303010000750000000c000a00000778")
    + SECRET
)


def handshake(rng: random.Random, path: bytes = b"/v1/tts") -> bytes:
    """A request for a WebSocket."""
    key = base64.b64encode(rng.randbytes(16))
    return (
        b"GET " + path + b"?" + SECRET + b"=1 HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
        b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + key + b"\r\n"
        b"Sec-WebSocket-Protocol: tts.v1.json\r\nX-Other: " + SECRET + b"\r\n\r\n"
    )


def request(rng: random.Random) -> bytes:
    """A request over HTTP."""
    body = b'{"input":"Hello there.","voice":"alloy","response_format":"pcm","x":"' + SECRET + b'"}'
    path = rng.choice([b"/v1/audio/speech", b"/v1/baseten/predict", b"/metrics", b"/healthz"])
    method = rng.choice([b"POST", b"GET"])
    return (
        method + b" " + path + b" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: "
        + str(len(body)).encode()
        + b"\r\nX-Other: "
        + SECRET
        + b"\r\n\r\n"
        + body
    )


def speech(character: int) -> bytes:
    """A request for speech with this character in a header's value."""
    body = b'{"input":"Hello there."}'
    return (
        b"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nX-API-Key: "
        + (SECRET + bytes([character]) + SECRET)
        + b"\r\nContent-Length: "
        + str(len(body)).encode()
        + b"\r\n\r\n"
        + body
    )


def frames(rng: random.Random) -> bytes:
    """A few frames of a client's, masked."""
    data = b""
    for payload in (
        b'{"type":"text","context":"a","text":"Hello there. ' + SECRET + b'"}',
        b'{"type":"end","context":"a"}',
    ):
        mask = rng.randbytes(4)
        masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
        data += bytes([0x81, 0x80 | len(payload)]) + mask + masked
    return data


def mutated(rng: random.Random, data: bytes) -> bytes:
    """The same with a few bytes changed, left out, put in, repeated or cut off."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed) or 1)
        match rng.randrange(5):
            case 0:
                changed[at : at + 1] = rng.randbytes(1)
            case 1:
                del changed[at : at + rng.randint(1, 8)]
            case 2:
                changed[at:at] = rng.randbytes(rng.randint(1, 8))
            case 3:
                changed[at:at] = changed[at : at + rng.randint(1, 40)]
            case _:
                changed[at:] = b""
    return bytes(changed)


KINDS: Final[dict[str, Callable[[random.Random], bytes]]] = {
    "random": lambda rng: rng.randbytes(rng.randint(1, 400)) + SECRET,
    "lines": lambda rng: SECRET + b"\r\n".join(rng.randbytes(20) for _ in range(20)) + b"\r\n\r\n",
    "handshake": lambda rng: mutated(rng, handshake(rng)),
    "frames": lambda rng: handshake(rng) + mutated(rng, frames(rng)),
    "any frames": lambda rng: handshake(rng) + rng.randbytes(rng.randint(2, 400)),
    "request": lambda rng: mutated(rng, request(rng)),
    "requests": lambda rng: request(rng) + mutated(rng, request(rng)) + request(rng),
    "tls": lambda rng: _TLS_HELLO[: rng.randint(1, len(_TLS_HELLO))],
    "head without end": lambda rng: handshake(rng)[:-2] + b"A: " + SECRET * rng.randint(1, 4000),
    "header's characters": lambda rng: speech(rng.choice(CONTROL)),
}
