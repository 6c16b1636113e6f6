"""What can go wrong, and when: the table that the tests of it and docs/reliability.md are made of.

Rule: a stage says how far a client has come, a fault what happens then. A client is a real socket, and is
brought to its stage by what the protocol says, never by a wait. `Fault` has a row of the page each.
"""

import asyncio
import ctypes
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from websockets.asyncio.client import ClientConnection, connect
from websockets.frames import Frame, Opcode
from websockets.typing import Subprotocol

from orpheus_ws import messages as m
from orpheus_ws.wire import wires
from tests.harness import MSGPACK, Peer, Reachable

TEXT: Final = "There are seven birds on the old roof. One of them sings. The others listen to it."
SENTENCE: Final = "There are seven birds on the old roof."
FLOOD: Final = 300
SO_ATTACH_FILTER: Final = 26
"""asm-generic/socket.h; Python has no name for it."""


class Client:
    """A client that is about to go wrong: a TCP connection, and perhaps a WebSocket on it."""

    def __init__(self, sock: socket.socket, connected: Peer | None = None) -> None:
        self.sock = sock
        self._connected = connected

    @property
    def peer(self) -> Peer:
        """The WebSocket; there must be one."""
        assert self._connected is not None
        return self._connected

    @property
    def greeted(self) -> bool:
        """Whether there is a WebSocket."""
        return self._connected is not None

    async def write(self, data: bytes) -> None:
        """Put bytes on the wire, whatever the protocol says."""
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    def leave(self, *, reset: bool = False) -> None:
        """End the TCP connection, by FIN or by RST, and say nothing of it."""
        if reset:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if self._connected is not None:
                self._connected.socket.transport.abort()
            self.sock.close()
            return
        self.sock.shutdown(socket.SHUT_WR)

    def gone(self) -> None:
        """Let go of what is left here."""
        if self._connected is not None:
            self._connected.socket.transport.abort()
        self.sock.close()


# Stages -------------------------------------------------------------------------------------------


async def connected(server: Reachable, *, receive_buffer: int = 0) -> Client:
    """A TCP connection on which nothing was said."""
    sock = socket.socket()
    sock.setblocking(False)
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", server.address.port))
    return Client(sock)


async def handshake(server: Reachable) -> Client:
    """In the middle of the handshake."""
    client = await connected(server)
    await client.write(b"GET /v1/tts HTTP/1.1\r\nHost: test\r\nUpgrade: websoc")
    return client


async def idle(server: Reachable) -> Client:
    """Greeted, and nothing was said."""
    client = await connected(server, receive_buffer=4096)
    opened: ClientConnection = await connect(
        server.address.url,
        sock=client.sock.dup(),
        subprotocols=[Subprotocol(MSGPACK)],
        compression=None,
        ping_interval=None,
        max_size=None,
    )
    greeted = Peer(opened, wires()[MSGPACK])
    await greeted.wait_for(m.Ready)
    return Client(client.sock, greeted)


async def opened(server: Reachable) -> Client:
    """A context is open and has no text."""
    client = await idle(server)
    await client.peer.send(m.Open(context="a", lead_ms=10_000))
    await client.peer.fence()
    return client


async def waiting(server: Reachable) -> Client:
    """A context waits for its turn, where every slot is taken; elsewhere it has just got one."""
    client = await opened(server)
    await client.peer.say("a", TEXT)
    await client.peer.fence()
    return client


async def first_token(server: Reachable) -> Client:
    """The engine works on the first segment."""
    client = await opened(server)
    await client.peer.say("a", TEXT)
    await client.peer.wait_for(m.Started)
    return client


async def first_audio(server: Reachable) -> Client:
    """The first audio was heard."""
    client = await first_token(server)
    await client.peer.wait_for(m.Audio)
    return client


async def mid_segment(server: Reachable) -> Client:
    """Some of a segment was heard."""
    client = await first_audio(server)
    for _ in range(5):
        await client.peer.wait_for(m.Audio)
    return client


async def between_segments(server: Reachable) -> Client:
    """A segment was heard to its end, and there is no more text."""
    client = await opened(server)
    await client.peer.send(m.Text(context="a", text=SENTENCE), m.Flush(context="a", id=1))
    await client.peer.wait_for(m.Flushed)
    return client


async def last_segment(server: Reachable) -> Client:
    """The last segment is being heard."""
    client = await first_token(server)
    while (await client.peer.wait_for(m.Segment)).index < 2:
        pass
    return client


Bring = Callable[[Reachable], Awaitable[Client]]
STAGES: Final[dict[str, Bring]] = {
    "TCP connected": connected,
    "handshake": handshake,
    "idle": idle,
    "opened, no text": opened,
    "waiting for its turn": waiting,
    "first token": first_token,
    "first audio": first_audio,
    "mid-segment": mid_segment,
    "between segments": between_segments,
    "last segment": last_segment,
}
"""Draining is one more, in which a whole server is."""


# What clients do ----------------------------------------------------------------------------------


async def leaves(client: Client) -> None:
    """FIN, without a close frame."""
    client.leave()


async def is_cut_off(client: Client) -> None:
    """RST."""
    client.leave(reset=True)


async def half_a_frame(client: Client) -> None:
    """Half a frame, and then FIN."""
    frame = Frame(Opcode.BINARY, b"x" * 500).serialize(mask=True)
    await client.write(frame[: len(frame) // 2])
    client.leave()


async def garbage(client: Client) -> None:
    """Bytes that are no message: a frame that decodes to nothing, or no HTTP."""
    data = Frame(Opcode.BINARY, b"\xc1").serialize(mask=True) if client.greeted else b"\xc1\r\n\r\n"
    await client.write(data)


async def too_much(client: Client) -> None:
    """The head of a message of a gigabyte."""
    await client.write(
        b"\x82\xff" + struct.pack("!Q", 2**30) + b"mask" if client.greeted else b"x" * 99_999
    )


async def flood(client: Client) -> None:
    """Very many small messages at once, and then FIN."""
    if client.greeted:
        for number in range(FLOOD):
            await client.peer.send(m.Ping(id=number), m.Cancel(context=f"{number}"))
    client.leave()


async def pipelines(client: Client) -> None:
    """More contexts at once than may be open, each with text, and then FIN."""
    if client.greeted:
        for number in range(40):
            await client.peer.say(f"more {number}", TEXT)
        await client.peer.fence()
    client.leave()


async def vanishes(client: Client) -> None:
    """Every packet to it is lost from now on, and it sends none: no FIN, no RST, no ACK."""
    drop_all = struct.pack("HBBI", 0x06, 0, 0, 0)  # BPF_RET | BPF_K, 0 bytes are kept
    program = bytearray(drop_all)
    address = (ctypes.c_char * len(program)).from_buffer(program)
    fprog = struct.pack("HL", 1, ctypes.addressof(address))
    client.sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, fprog)


async def stops_reading(client: Client) -> None:
    """Nothing is taken from the socket any more."""
    if client.greeted:
        client.peer.socket.transport.pause_reading()


class Fault(NamedTuple):
    """A row of the table."""

    what: str
    gets: str
    """What whoever it befalls is told."""
    others: str = "nothing"
    """What everybody else notices."""


class ClientFault(NamedTuple):
    """What a client does to itself, at any stage."""

    do: Callable[[Client], Awaitable[None]]
    row: Fault


CLIENTS: Final[dict[str, ClientFault]] = {
    "fin": ClientFault(leaves, Fault("a client leaves, by FIN", "nothing")),
    "rst": ClientFault(is_cut_off, Fault("a client leaves, by RST", "nothing")),
    "half-frame": ClientFault(half_a_frame, Fault("half a frame, then FIN", "nothing")),
    "garbage": ClientFault(
        garbage,
        Fault(
            "bytes that are no message",
            "`bad_message`, 1007; instead of a request 400, instead of TLS a closed connection",
        ),
    ),
    "too-much": ClientFault(
        too_much,
        Fault(
            "a message of a gigabyte",
            "1009 before it is in memory; before the handshake 400 or a closed connection",
        ),
    ),
    "flood": ClientFault(
        flood, Fault("600 messages at once, then FIN", "answers, until it leaves")
    ),
    "pipeline": ClientFault(
        pipelines, Fault("40 contexts at once, then FIN", "`context_limit` for those over 32")
    ),
    "vanish": ClientFault(vanishes, Fault("a client vanishes: every packet is lost", "nothing")),
    "stop-reading": ClientFault(
        stops_reading,
        Fault(
            "a client stops reading",
            "`slow_consumer`, 1008, when audio was due for 5 s; without audio it may stay",
        ),
    ),
}


# What befalls engine and codec --------------------------------------------------------------------


class EngineFault(NamedTuple):
    """What befalls one segment, by its first word, and how the context ends."""

    word: str
    ending: str
    """The code of its error, or the reason of its `done`."""
    row: Fault


ENGINE: Final[dict[str, EngineFault]] = {
    "raises": EngineFault(
        "Raise", "engine_failed", Fault("the engine raises on a segment", "`engine_failed`")
    ),
    "stalls": EngineFault(
        "Stall",
        "engine_failed",
        Fault("the engine stalls on a segment", "`engine_failed` after 30 s"),
    ),
    "junk": EngineFault(
        "Junk", "engine_failed", Fault("the engine gives what are no ids", "`engine_failed`")
    ),
    "bad-ids": EngineFault(
        "Babble",
        "end",
        Fault(
            "the engine gives ids out of range or out of turn",
            "its audio; a frame is lost for each",
        ),
    ),
    "never-stops": EngineFault(
        "Ramble",
        "length",
        Fault("the engine never stops", "`segment_length`, and the next segment"),
    ),
    "loops": EngineFault(
        "Mumble",
        "loop",
        Fault("the engine repeats itself", "`segment_loop` within 2 s, and the next segment"),
    ),
    "stops-at-once": EngineFault(
        "Hush", "no_audio", Fault("the engine stops at once", "`no_audio`, after a second try")
    ),
    "dies": EngineFault(
        "Die",
        "engine_failed",
        Fault("the engine dies", "`engine_failed`, 1011; exit code 3", "the same"),
    ),
}

CODEC: Final[dict[str, Fault]] = {
    "raises": Fault(
        "a step of the codec raises", "`internal`", "`internal` for those in the same step"
    ),
    "always-raises": Fault(
        "every step raises", "`internal`; 1011 and exit code 3 after 8 of them in a row", "the same"
    ),
    "hangs": Fault(
        "a step does not end",
        "`internal`, 1011 and exit code 3 after 30 s; `/readyz` fails after 5 s",
        "the same",
    ),
    "dies": Fault("the codec's thread ends", "`internal`, 1011; exit code 3", "the same"),
}

PROCESS: Final[dict[str, Fault]] = {
    "blocked": Fault(
        "the event loop stands still for a second",
        "its audio, a second late",
        "the same; `orpheus_event_loop_late_seconds` shows it",
    ),
    "clock": Fault(
        "the wall clock leaps, either way", "its audio; only access tokens know the time of day"
    ),
    "descriptors": Fault(
        "there are no descriptors left", "no connection, until there are some again"
    ),
    "log": Fault(
        "nobody reads the log, or its disk is full",
        "its audio",
        "nothing; lines are dropped and counted",
    ),
    "streams": Fault("standard streams are closed", "its audio"),
    "loading": Fault("SIGTERM or SIGINT while a model loads", "exit code 0 at once"),
    "term": Fault(
        "SIGTERM or SIGINT at any stage", "its audio to the end, then 1012; exit code 0", "the same"
    ),
    "kill": Fault("SIGKILL", "the connection is lost (1006)", "the same"),
    "closing": Fault(
        "a part hangs as it is closed", "exit code as it should be, after 30 s at most"
    ),
}

ROWS: Final = (
    *(fault.row for fault in CLIENTS.values()),
    Fault("30 connect at once, over and over", "a socket, or 503 and `Retry-After`"),
    *(fault.row for fault in ENGINE.values()),
    *CODEC.values(),
    *PROCESS.values(),
)


def table() -> str:
    """The page's table."""
    head = "| what happens | what it is told | what all others notice |\n|---|---|---|\n"
    return head + "".join(f"| {row.what} | {row.gets} | {row.others} |\n" for row in ROWS)
