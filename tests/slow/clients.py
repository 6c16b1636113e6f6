"""Other people's clients, and what each is found to do with our server.

Rule: `CLIENTS` is the list; a client is one line of it and one program in `tests/clients`. What was found
is kept in `tests/clients/found.json`, from which `docs/clients.md` has its table. It is written by

    python -m tests.slow.clients [NAME …]
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from orpheus_ws.engine.pocket import VOICE as POCKET
from tests.slow.actors import PING_SECONDS, SIMULATED, VOICE, Actor, Answer, free_port, serving
from tests.slow.environments import ROOT, version_of
from tests.voice.recogniser import Recogniser, matched, words_of

FOUND: Final = ROOT / "tests" / "clients" / "found.json"

TEXT: Final = (
    "The next train to the city leaves in twenty minutes. "
    "The doctor will call you back this afternoon."
)
LONG: Final = "My sister bought a red bicycle and two old books. " * 4
"""What is interrupted."""
SHORT: Final = "Hello there."
"""What is said where it does not matter."""
HEARD: Final = 0.8
"""Of the words of `TEXT`; the recogniser gets no more than that from some voices."""
UNANSWERED_PINGS: Final = 15


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
    key: bool = True
    """Whether it can be told a key."""


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
)
BY_NAME: Final = {client.name: client for client in CLIENTS}

Findings = dict[str, Any]


def find_out(client: Client) -> Findings:
    """Try everything with one client. Takes about 20 s."""
    with Actor(client.environment, *client.program) as actor:
        return {
            "version": version_of(client.environment, client.package),
            **_speech(actor),
            **_failures(actor),
        }


def _speech(actor: Actor) -> Findings:
    """Two turns, a barge-in, a turn, a silence, a turn; with the voice that words are heard of."""
    hear = Recogniser()
    with serving(*VOICE) as served:

        def turn() -> tuple[Answer, bool, int]:
            """A turn, whether it was heard, and the sockets that it opened."""
            before = served.opened
            answer = actor.say(TEXT)
            words = words_of(TEXT)
            heard = hear.words(answer.samples)
            return answer, matched(words, heard) >= HEARD * len(words), served.opened - before

        actor.open(served, voice=POCKET)
        first, complete, _ = turn()
        _, repeated, second = turn()
        ended = _outcomes(served.metric)
        actor.interrupt(LONG)
        after, fresh, third = turn()
        noticed = {name: n - ended[name] for name, n in _outcomes(served.metric).items()}
        # What nobody reads answers no ping.
        time.sleep(UNANSWERED_PINGS * PING_SECONDS)
        _, lasting, fourth = turn()
        return {
            "all_words": complete and repeated,
            "one_socket": second == 0,
            "word_times": bool(first.words),
            # No more than one turn was spoken to its end: the one after the interruption.
            "barge_in": _noticed(noticed),
            "after_barge_in": fresh and after.seconds < 1.2 * first.seconds,
            "one_socket_after_barge_in": third == 0,
            "after_silence": lasting,
            "one_socket_after_silence": fourth == 0,
        }


def _outcomes(metric: Callable[..., float]) -> dict[str, int]:
    return {
        outcome: int(metric("orpheus_contexts_total", outcome=outcome))
        for outcome in ("done", "cancelled", "disconnected", "failed")
    }


def _noticed(ended: dict[str, int]) -> str:
    """How the server took an interrupted turn."""
    if ended["cancelled"]:
        return "cancel"
    return "close" if ended["disconnected"] else "unseen"


def _failures(actor: Actor) -> Findings:
    """A wrong key, an unknown voice, a full server, a restart."""
    port = free_port()
    with serving(*SIMULATED, "--set", "auth.keys.a=secret") as served:
        actor.open(served, key="wrong")
        wrong_key = _told(actor.say(SHORT))
        actor.open(served, key="secret", voice="nobody")
        unknown_voice = _told(actor.say(SHORT))
    with serving(*SIMULATED, "--capacity", "1", port=port) as served:
        with served.occupied():
            actor.open(served)
            full = _told(actor.say(SHORT))
        actor.open(served, patient=True)
        assert actor.say(SHORT).error is None
        served.stop()
    with serving(*SIMULATED, port=port):
        restarted = _told(actor.say(SHORT))
    return {
        "wrong_key": wrong_key,
        "unknown_voice": unknown_voice,
        "full": full,
        "restart": restarted,
    }


def _told(answer: Answer) -> str:
    """What a client makes of it."""
    if answer.error is None:
        return "spoken" if answer.pcm else "silence"
    status = "" if answer.status is None else f" {answer.status}"
    again = {True: ", retried", False: ", final", None: ""}[answer.retryable]
    return f"{answer.error}{status}{again}"


def recorded() -> dict[str, Findings]:
    """What was found before."""
    found: dict[str, Findings] = json.loads(FOUND.read_text(encoding="utf-8"))
    return found


def main() -> None:
    """Find out and write it down, for all or for those that are named."""
    found = recorded() if FOUND.exists() else {}
    for name in sys.argv[1:] or BY_NAME:
        found[name] = find_out(BY_NAME[name])
        sys.stdout.write(f"{name} {json.dumps(found[name], indent=1)}\n")
    ordered = {client.name: found[client.name] for client in CLIENTS if client.name in found}
    FOUND.write_text(json.dumps(ordered, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
