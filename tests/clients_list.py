"""Other people's clients, and what each was found to do with our server.

Rule: `CLIENTS` is the list; a client is one line of it and one program in `tests/clients`. What was found
is kept in `tests/clients/found.json`, which `tests/slow/test_clients.py` compares with and
`docs/clients.md` has its table from. After a change here this writes the table anew:

    python -m tests.clients_list
"""

import json
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
FOUND: Final = ROOT / "tests" / "clients" / "found.json"
PAGE: Final = ROOT / "docs" / "clients.md"
TABLE: Final = re.compile(
    r"(?<=<!-- table of clients -->\n).*(?=<!-- end of table -->\n)", re.DOTALL
)

Findings = dict[str, Any]


class Client(NamedTuple):
    """One client, speaking one protocol."""

    name: str
    environment: str
    package: str
    """Whose version is shown."""
    program: tuple[str, ...]
    """In `tests/clients`, with its arguments."""
    shown: str
    url: str
    """What its user sets, in Markdown."""
    over_http: bool = False
    """Whether a turn is one request or more, and no socket."""


CLIENTS: Final = (
    Client(
        "livekit_own",
        "livekit",
        "livekit-agents",
        ("livekit_own",),
        "LiveKit Agents, `orpheus_ws.integrations.livekit.TTS`",
        '`url="ws://HOST:8765/v1/tts"`',
    ),
    Client(
        "pipecat_own",
        "pipecat",
        "pipecat-ai",
        ("pipecat_own",),
        "Pipecat, `orpheus_ws.integrations.pipecat.OrpheusTTSService`",
        '`url="ws://HOST:8765/v1/tts"`',
    ),
    Client(
        "livekit_baseten_orpheus",
        "livekit",
        "livekit-plugins-baseten",
        ("livekit_baseten", "orpheus"),
        'LiveKit Agents, `baseten.TTS(model="orpheus")`',
        '`model_endpoint="ws://HOST:8765/v1/baseten/websocket"`',
    ),
    Client(
        "livekit_baseten_qwen3",
        "livekit",
        "livekit-plugins-baseten",
        ("livekit_baseten", "qwen3-tts"),
        'LiveKit Agents, `baseten.TTS(model="qwen3-tts")`',
        '`model_endpoint="ws://HOST:8765/v1/audio/speech/stream"`',
    ),
    Client(
        "livekit_cartesia",
        "livekit",
        "livekit-plugins-cartesia",
        ("livekit_cartesia",),
        "LiveKit Agents, `cartesia.TTS()`",
        '`base_url="http://HOST:8765"`',
    ),
    Client(
        "livekit_deepgram",
        "livekit",
        "livekit-plugins-deepgram",
        ("livekit_deepgram",),
        "LiveKit Agents, `deepgram.TTS()`",
        '`base_url="ws://HOST:8765/v1/speak"`',
    ),
    Client(
        "pipecat_cartesia",
        "pipecat",
        "pipecat-ai",
        ("pipecat_cartesia",),
        "Pipecat, `CartesiaTTSService`",
        '`url="ws://HOST:8765/tts/websocket"`',
    ),
    Client(
        "pipecat_deepgram",
        "pipecat",
        "pipecat-ai",
        ("pipecat_deepgram",),
        "Pipecat, `DeepgramTTSService`",
        '`base_url="ws://HOST:8765"`',
    ),
    Client(
        "sdk_cartesia",
        "sdks",
        "cartesia",
        ("sdk_cartesia",),
        "Cartesia's SDK, `tts.websocket_connect()`",
        '`websocket_base_url="ws://HOST:8765"`',
    ),
    Client(
        "sdk_deepgram",
        "sdks",
        "deepgram-sdk",
        ("sdk_deepgram",),
        "Deepgram's SDK, `speak.v1.connect()`",
        '`DeepgramClientEnvironment(production="ws://HOST:8765", …)`',
    ),
    Client(
        "livekit_baseten_http",
        "livekit",
        "livekit-plugins-baseten",
        ("livekit_baseten", "orpheus", "http"),
        'LiveKit Agents, `baseten.TTS(model="orpheus")` over HTTP',
        '`model_endpoint="http://HOST:8780/v1/baseten/predict"`',
        over_http=True,
    ),
    Client(
        "livekit_openai",
        "livekit",
        "livekit-plugins-openai",
        ("livekit_openai",),
        "LiveKit Agents, `openai.TTS()`",
        '`base_url="http://HOST:8780/v1"`',
        over_http=True,
    ),
    Client(
        "livekit_openai_pcm",
        "livekit",
        "livekit-plugins-openai",
        ("livekit_openai", "pcm"),
        'LiveKit Agents, `openai.TTS(response_format="pcm")`',
        '`base_url="http://HOST:8780/v1"`',
        over_http=True,
    ),
    Client(
        "pipecat_openai",
        "pipecat",
        "pipecat-ai",
        ("pipecat_openai",),
        "Pipecat, `OpenAITTSService`, with a voice of OpenAI's",
        '`base_url="http://HOST:8780/v1"`',
        over_http=True,
    ),
    Client(
        "sdk_openai",
        "sdks",
        "openai",
        ("sdk_openai",),
        "OpenAI's SDK, `audio.speech`",
        '`base_url="http://HOST:8780/v1"`',
        over_http=True,
    ),
)
BY_NAME: Final = {client.name: client for client in CLIENTS}


def recorded() -> dict[str, Findings]:
    """What was found before."""
    found: dict[str, Findings] = json.loads(FOUND.read_text(encoding="utf-8"))
    return found


def record(found: dict[str, Findings]) -> None:
    """Keep what was found, and write the table."""
    ordered = {client.name: found[client.name] for client in CLIENTS if client.name in found}
    FOUND.write_text(json.dumps(ordered, indent=2) + "\n", encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(TABLE.sub(lambda _: table(ordered), page), encoding="utf-8")


def table(found: dict[str, Findings]) -> str:
    """The table of the page, from what was found."""
    columns = (
        "client",
        "version",
        "set",
        "all words",
        "word times",
        "turns on a socket",
        "barge-in",
        "after a silence",
        "after a restart",
        "full server",
        "wrong key",
        "unknown voice",
    )
    rows = [columns, ("---",) * len(columns)]
    rows += [
        (
            client.shown,
            found[client.name]["version"],
            client.url,
            *_cells(client, found[client.name]),
        )
        for client in CLIENTS
        if client.name in found
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cells(client: Client, found: Findings) -> tuple[str, ...]:
    barge_in = {
        "cancel": "cancelled",
        "close": "request left" if client.over_http else "socket closed",
        "unseen": "spoken to the end",
    }[found["barge_in"]]
    if not found["after_barge_in"]:
        barge_in += ", next turn disturbed"
    elif not found["barge_in_stops"]:
        barge_in += ", speech goes on"
    elif found.get("one_socket_after_barge_in"):
        barge_in += ", same socket"
    silence = "spoken" if found["after_silence"] else "lost"
    if found.get("one_socket_after_silence"):
        silence += ", same socket"
    turns = "many" if found.get("one_socket") else "one"
    return (
        "yes" if found["all_words"] else "no",
        "yes" if found["word_times"] else "no",
        "requests" if client.over_http else turns,
        barge_in,
        silence,
        *(_said(found[name]) for name in ("restart", "full", "wrong_key", "unknown_voice")),
    )


def _said(outcome: str) -> str:
    if outcome == "spoken":
        return outcome
    kind, comma, rest = outcome.partition(",")
    name, space, more = kind.partition(" ")
    return f"`{name}`{space}{more}{comma}{rest}"


if __name__ == "__main__":
    record(recorded())
