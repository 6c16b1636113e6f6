"""What a client is found to do with our server. `tests/clients_list.py` has the clients.

Rule: the same is tried with each, and nothing here knows any. To find out again, and to write the record
and the table in `docs/clients.md`:

    python -m tests.slow.clients [NAME …]
"""

import contextlib
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from orpheus_ws.audio import LARGEST_PORTION
from orpheus_ws.engine.pocket import VOICE as POCKET
from orpheus_ws.server.receipts import most_unread
from tests.clients_list import BY_NAME, Client, Findings, record, recorded
from tests.ports import free_port
from tests.slow.actors import (
    PING_SECONDS,
    SIMULATED,
    VOICE,
    Actor,
    Answer,
    Served,
    serving,
)
from tests.slow.environments import version_of
from tests.voice.recogniser import Recogniser, matched, words_of

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
ENDLESS: Final = LONG * 10
"""What is interrupted by a client that then says nothing, for longer than its buffers could take."""
AWAY_SECONDS: Final = 12.0
"""How long it then says nothing: the server must have stopped by itself long before."""
LEAD: Final = 2.0
HTTP_LEAD: Final = 10.0
NOTICED: Final = 3.0
"""In which a server must have noticed that a connection was closed. Who does not sends `AWAY_SECONDS` more."""
UNDER_WAY: Final = 0.5
"""Audio that a client had been given and had not told of when it left."""
UNANSWERED_PINGS: Final = 15
AT_ONCE: Final = 3
"""Clients. They mostly wait for speech, which the server sends little faster than it is heard."""


def find_out(client: Client) -> Findings:
    """Try everything with one client. Takes about 20 s."""
    with Actor(client.environment, *client.program) as actor:
        return {
            "version": version_of(client.environment, client.package),
            **_speech(actor, client),
            "barge_in_stops": _wasted(actor) <= most_wasted(client),
            **_failures(actor),
        }


def _speech(actor: Actor, client: Client) -> Findings:
    """Two turns, a barge-in, a turn, a silence, a turn; with the voice that words are heard of."""
    with serving(*VOICE) as served:

        def turn() -> tuple[Answer, bool]:
            """A turn, and whether it was on the socket of the one before."""
            before = actor.sockets(served)
            answer = actor.say(TEXT)
            return answer, set() != before == actor.sockets(served)

        actor.open(served, voice=POCKET)
        first, _ = turn()
        again, second = turn()
        ended = _outcomes(served)
        actor.interrupt(LONG)
        after, third = turn()
        noticed = {name: n - ended[name] for name, n in _outcomes(served).items()}
        # What nobody reads answers no ping.
        time.sleep(UNANSWERED_PINGS * PING_SECONDS)
        last, fourth = turn()
    sockets = {
        "one_socket": second,
        "one_socket_after_barge_in": third,
        "one_socket_after_silence": fourth,
    }
    # Only now: a client that waits for long between turns has timers of its own.
    hear = Recogniser()
    return {
        "all_words": _heard(hear, first) and _heard(hear, again),
        "word_times": bool(first.words),
        # No more than one turn was spoken to its end: the one after the interruption.
        "barge_in": _noticed(noticed),
        "after_barge_in": _heard(hear, after) and after.seconds < 1.2 * first.seconds,
        "after_silence": _heard(hear, last),
        **({} if client.over_http else sockets),
    }


def _heard(hear: Recogniser, answer: Answer) -> bool:
    """Whether `TEXT` is what was said."""
    words = words_of(TEXT)
    return matched(words, hear.words(answer.samples)) >= HEARD * len(words)


def most_wasted(client: Client) -> float:
    """Seconds that may be sent to who leaves a turn: the lead, what fits the window, and a message."""
    if client.over_http:  # it can only leave by closing its connection
        return HTTP_LEAD + LARGEST_PORTION + UNDER_WAY + NOTICED
    return LEAD + most_unread(LEAD) + LARGEST_PORTION + UNDER_WAY


def _wasted(actor: Actor) -> float:
    """Seconds sent and not heard of a turn that was left, by a client that says nothing after it.

    What was due while it was listened to does not count: a client may have stood still before it left.
    """
    with serving(*SIMULATED) as served:
        actor.open(served)
        actor.say(SHORT)
        before = served.metric("orpheus_audio_seconds_total")
        began = time.monotonic()
        heard = actor.interrupt(ENDLESS).seconds
        due = time.monotonic() - began
        time.sleep(AWAY_SECONDS)
        wasted = served.metric("orpheus_audio_seconds_total") - before - max(heard, due)
        orphaned = served.metric("orpheus_orphaned_audio_seconds_total")
        sys.stderr.write(f"{wasted:.1f} s sent and not heard, {orphaned:.1f} s counted\n")
        return wasted


def _outcomes(served: Served) -> dict[str, int]:
    # What a client knows to be over, the server may not know yet.
    while served.metric("orpheus_live_contexts"):
        pass
    return {
        outcome: int(served.metric("orpheus_contexts_total", outcome=outcome))
        for outcome in ("done", "cancelled", "disconnected", "failed")
    }


def _noticed(ended: dict[str, int]) -> str:
    """How the server took an interrupted turn."""
    if ended["cancelled"]:
        return "cancel"
    return "close" if ended["disconnected"] else "unseen"


def _failures(actor: Actor) -> Findings:
    """A wrong key, an unknown voice, a full server, a restart."""
    port, http_port = free_port(), free_port()
    with serving(*SIMULATED, "--set", "auth.keys.a=secret") as served:
        actor.open(served, key="wrong")
        wrong_key = _told(actor.say(SHORT))
        actor.open(served, key="secret", voice="nobody")
        unknown_voice = _told(actor.say(SHORT))
    with serving(*SIMULATED, "--capacity", "1", port=port, http_port=http_port) as served:
        with served.occupied():
            actor.open(served)
            full = _told(actor.say(SHORT))
        actor.open(served, patient=True)
        assert actor.say(SHORT).error is None
        served.stop()
    with serving(*SIMULATED, port=port, http_port=http_port):
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


@contextlib.contextmanager
def finding_out(clients: Iterable[Client]) -> Iterator[Mapping[str, Future[Findings]]]:
    """What is found of each, by name, as it becomes known. Leaving early leaves the rest out."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {client.name: pool.submit(find_out, client) for client in clients}
        pool.shutdown(cancel_futures=True)


def main() -> None:
    """Find out and write it down, for all or for those that are named."""
    found = recorded()
    with finding_out(BY_NAME[name] for name in sys.argv[1:] or BY_NAME) as findings:
        for name, future in findings.items():
            found[name] = future.result()
            sys.stdout.write(f"{name} {json.dumps(found[name], indent=1)}\n")
            record(found)


if __name__ == "__main__":
    main()
