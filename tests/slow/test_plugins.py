"""Our plugins for LiveKit Agents and Pipecat keep the rules of their frameworks.

The frameworks are real and run in environments of their own; the engine is simulated, so that all turns
with the same text are equally long.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import Authority
from tests.clients_list import BY_NAME, PAGE
from tests.ports import free_port
from tests.slow.actors import SIMULATED, Actor, Served, serving
from tests.slow.environments import ROOT, python_of

pytestmark = pytest.mark.slow

STALLS = (
    "engine.options.fault=stalls",
    f"engine.options.fault_requests={','.join(map(str, range(1, 20)))}",
)
"""All but the server's own test word."""
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
PAGE_URL = "ws://127.0.0.1:8765/v1/tts"
LONGEST_FRAME = 0.25
MARK = 0.011
"""LiveKit ends a turn with 10 ms of silence if it has nothing else left to call the last frame."""
SILENT = (*STALLS, "engine.options.silent_frames=2")
"""Nothing is ever heard: it falls silent within the silence before the speech."""
READ = 6.0
"""Seconds of audio. Whoever was sent so much has read some: further ahead nobody is sent anything."""
SHORT = "It was cold."
LISTENED = ("livekit_own", "pipecat_own", "livekit_baseten_qwen3", "pipecat_cartesia")
BARGE_INS = 10
LOOKS = BARGE_INS // 2
ANSWER = "The quick brown fox jumps over the lazy dog, and a bright cold day in April it was."
"""Six seconds."""


@pytest.fixture(scope="module")
def over_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    """A server that speaks TLS, and the file of its authority."""
    authority = Authority(tmp_path_factory.mktemp("tls"))
    authority.issue()
    options = [part for setting in authority.settings for part in ("--set", setting)]
    with serving(*SIMULATED, *options) as served:
        yield served, authority.file


def seen_by(
    environment: str, served: Served, stalling: Served, over_tls: tuple[Served, Path]
) -> dict[str, Any]:
    """What an environment's program saw of the servers."""
    program = f"tests.clients.{environment}_rules"
    urls = [each.announced["url"] for each in (served, stalling, over_tls[0])]
    said = subprocess.run(
        [python_of(environment), "-m", program, *urls, over_tls[1]],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    seen: dict[str, Any] = json.loads(said.stdout)
    return seen


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Served, Served]]:
    """One that speaks, and one that falls silent in the middle of everything."""
    stalls = [part for setting in STALLS for part in ("--set", setting)]
    with serving(*SIMULATED) as served, serving(*SIMULATED, *stalls) as stalling:
        yield served, stalling


def keeps_the_rules(turn: Mapping[str, Any], *, metrics: int = 1) -> None:
    """What LiveKit checks of every TTS in its own tests."""
    assert turn["raised"] is None
    assert turn["errors"] == []
    assert turn["finals"][:-1] == [False] * (len(turn["finals"]) - 1)
    assert turn["finals"][-1]
    assert len(set(turn["requests"])) == 1
    assert all(0 < duration <= LONGEST_FRAME for duration in turn["durations"])
    (metric,) = turn["metrics"]
    assert metric["request_id"] == turn["requests"][0]
    assert metric["audio_duration"] == pytest.approx(turn["seconds"])
    assert 0 < metric["ttfb"] <= metric["duration"]


def test_livekit(servers: tuple[Served, Served], over_tls: tuple[Served, Path]) -> None:
    """Frames, ids, metrics, words, retries and sockets are as LiveKit wants them."""
    served, stalling = servers
    seen = seen_by("livekit", served, stalling, over_tls)
    for name in ("first", "second", "after_leaving", "whole", "telephone", "known"):
        keeps_the_rules(seen[name])
        assert seen[name]["seconds"] == pytest.approx(seen["first"]["seconds"], abs=MARK)
    # Nothing that a moment later might be otherwise.
    assert (seen["unknown"]["raised"], seen["unknown"]["errors"]) == ("APIError", [False])
    for name in ("second", "after_leaving", "whole"):
        assert seen[name]["metrics"][0]["connection_reused"]
    assert seen["first"]["words"] == "It was cold. We went home. "
    times = [time for word in seen["first"]["times"] for time in word]
    assert times == sorted(times)
    assert times[-1] <= seen["first"]["seconds"] + 0.001
    for name in ("empty", "blank"):
        assert not any(seen[name].values())
    for name in ("silent_stream", "silent_whole"):
        keeps_the_rules(seen[name])
        assert 0 < seen[name]["seconds"] <= 2 * MARK
    assert seen["at_once"]["whole"] == pytest.approx(seen["at_once"]["stream"], abs=MARK)
    assert seen["telephone"]["rates"] == [8000]
    # A listener has heard something, so LiveKit does not begin anew; of a whole text it does.
    assert (seen["stalling"]["raised"], seen["stalling"]["errors"]) == ("APITimeoutError", [False])
    for name in ("stalling_whole", "no_server"):
        assert seen[name]["raised"] == "APITimeoutError"
        assert seen[name]["errors"] == [True, True, True, False]
    until_nothing_is_left(served)
    until_nothing_is_left(stalling)
    # One for all turns, one for the second of two at the same time, one for the telephone. Those who are
    # gone are counted a little later than their last context, and in two steps.
    while served.metric("orpheus_sockets") or served.opened < 3:
        pass
    assert served.opened == 3
    assert served.metric("orpheus_contexts_total", outcome="cancelled") == 1


def test_pipecat(servers: tuple[Served, Served], over_tls: tuple[Served, Path]) -> None:
    """Frames come in Pipecat's order, words have times, and errors their category."""
    served, stalling = servers
    cancelled = served.metric("orpheus_contexts_total", outcome="cancelled")
    seen = seen_by("pipecat", served, stalling, over_tls)
    until_nothing_is_left(served)
    until_nothing_is_left(stalling)
    text = "It was cold. We went home."
    length = pytest.approx(seen["turn"]["seconds"]["0"], abs=0.001)
    for name in ("turn", "tokens", "spoken", "telephone", "two", "known"):
        turn = seen[name]
        assert (turn["errors"], turn["usable"], turn["even"]) == ([], True, True)
        assert turn["words"] == (f"{text} {text}" if name == "two" else text)
        assert turn["ordered"]
        assert all(seconds == length for seconds in turn["seconds"].values())
    assert len(seen["two"]["seconds"]) == 2
    order = ("LLMFullResponseStartFrame", "TTSStartedFrame", "TTSAudioRawFrame", "TTSTextFrame")
    for name in ("turn", "tokens", "telephone"):
        frames = seen[name]["frames"]
        places = [frames.index(frame) for frame in (*order, "TTSStoppedFrame")]
        assert places == sorted(places)
        assert frames[-1] == "LLMFullResponseEndFrame"
        assert [frames.count(f"TTS{end}Frame") for end in ("Started", "Stopped")] == [1, 1]
    assert seen["telephone"]["rates"] == [8000]
    assert seen["empty"]["seconds"] == {}
    assert seen["silent"]["seconds"] == {"0": pytest.approx(0.01)}
    assert seen["empty"]["errors"] == seen["silent"]["errors"] == []
    ((spoken, remaining),) = seen["interrupted"]["interrupted"]
    assert f"{spoken} {remaining}".strip().startswith(text)
    assert seen["interrupted"]["seconds"]["1"] == length
    assert served.metric("orpheus_contexts_total", outcome="cancelled") == cancelled + 1
    assert seen["wrong_rate"]["errors"] == ["invalid_request"]
    assert not seen["wrong_rate"]["usable"]
    assert set(seen["unknown"]["errors"]) == {"unknown"}
    assert set(seen["nobody"]["errors"]) == {"connectivity", "unknown"}
    assert seen["nobody"]["usable"]


@pytest.fixture
def full() -> Iterator[Served]:
    """A server without room for anybody else."""
    with serving(*SIMULATED, "--set", "engine.capacity=1") as served, served.occupied():
        yield served


def broken_by(environment: str, served: Served, full: Served) -> dict[str, Any]:
    """What an environment's program saw that uses our plugin badly; nothing is left of it."""
    said = subprocess.run(
        [
            python_of(environment),
            "-m",
            f"tests.clients.{environment}_breaks",
            served.announced["url"],
            full.announced["url"],
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    until_nothing_is_left(served)
    while served.metric("orpheus_sockets"):
        pass
    seen: dict[str, Any] = json.loads(said.stdout)
    assert seen["tasks"] == 0
    return seen


def test_livekit_misused(servers: tuple[Served, Served], full: Served) -> None:
    """Turns cancelled at every await, TTS closed twice and in the middle, two sessions at once."""
    seen = broken_by("livekit", servers[0], full)
    assert set(seen["cancelled"]) <= {"CancelledError", None}
    assert seen["failing"] == ["LookupError", True]
    for seconds in (seen["after"], *seen["both"], seen["warmed"][1]):
        assert seconds == pytest.approx(seen["usual"], abs=MARK)
    assert seen["warmed"][0] == 1
    assert (seen["closed"], seen["full"]) == ("APIConnectionError", "APIStatusError")


def test_pipecat_misused(servers: tuple[Served, Served], full: Served) -> None:
    """Quick interruptions, pipelines cancelled at any time, two at once, a server that is full."""
    seen = broken_by("pipecat", servers[0], full)
    length = pytest.approx(seen["usual"]["seconds"]["0"], abs=0.001)
    for turn in (seen["interrupted"], seen["twice"], *seen["both"], seen["empty"]):
        assert (turn["errors"], turn["usable"], turn["even"]) == ([], True, True)
        assert list(turn["seconds"].values())[-1] == length
        assert turn["words"].endswith("It was cold. We went home.")
    for turn in seen["cancelled"]:
        assert (turn["errors"], turn["usable"]) == ([], True)
    assert set(seen["full"]["errors"]) == {"server", "unknown"}
    assert seen["full"]["usable"]


@pytest.mark.parametrize("environment", ["livekit", "pipecat"])
def test_the_examples(environment: str, servers: tuple[Served, Served], tmp_path: Path) -> None:
    """The example of the clients' page speaks a context to its end, and says nothing of errors."""
    served, _ = servers
    done = served.metric("orpheus_contexts_total", outcome="done")
    (example,) = (text for text in EXAMPLES if "integrations" in text and environment in text)
    program = tmp_path / "example.py"
    program.write_text(example.replace(PAGE_URL, served.announced["url"]))
    said = subprocess.run(
        [python_of(environment), program],
        env=os.environ | {"PYTHONPATH": str(ROOT), "LOGURU_LEVEL": "WARNING"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        timeout=60,
    )
    assert "rror" not in said.stdout
    assert served.metric("orpheus_contexts_total", outcome="done") == done + 1


def until_nothing_is_left(served: Served) -> None:
    """No context is open, no slot of engine or codec taken; only the test's timeout notices others."""
    kept = ("live_contexts", "slots_taken", "contexts_awaiting_turn", "codec_streams")
    while any(served.metric(f"orpheus_{name}") for name in kept):
        pass


@pytest.mark.parametrize("name", ["livekit_own", "pipecat_own"])
def test_a_server_that_dies_before_it_spoke(name: str) -> None:
    """What nobody has heard yet is spoken, once, by the server that comes in its place."""
    client, port = BY_NAME[name], free_port()
    with Actor(client.environment, *client.program) as actor, ThreadPoolExecutor(1) as pool:
        silent = [part for setting in SILENT for part in ("--set", setting)]
        with serving(*SIMULATED, *silent, port=port) as dying:
            actor.open(dying, patient=True)
            answer = pool.submit(actor.say, SHORT)
            while not dying.metric("orpheus_live_contexts"):
                pass
            assert not dying.metric("orpheus_audio_seconds_total")
        with serving(*SIMULATED, port=port) as served:
            assert answer.result().error is None
            assert answer.result().seconds == pytest.approx(actor.say(SHORT).seconds, abs=MARK)
            assert served.metric("orpheus_contexts_total", outcome="done") == 2


@pytest.mark.parametrize(
    ("name", "patient", "error"),
    [
        ("livekit_own", True, "APIConnectionError"),
        ("pipecat_own", False, "ErrorFrame(CONNECTIVITY)"),
    ],
)
def test_a_server_that_dies_while_it_speaks(name: str, patient: bool, error: str) -> None:
    """What was heard is not begun anew; the framework's own error says so, and the next turn is spoken.

    It is spoken by the server that comes in its place, on one fresh socket, of which nothing is left.
    """
    client, port = BY_NAME[name], free_port()
    with Actor(client.environment, *client.program) as actor, ThreadPoolExecutor(1) as pool:
        with serving(*SIMULATED, port=port) as dying:
            actor.open(dying, patient=patient)
            answer = pool.submit(actor.say, ANSWER * 4)
            while dying.metric("orpheus_audio_seconds_total") < READ:
                pass
        with serving(*SIMULATED, port=port) as served:
            assert answer.result().error == error
            assert actor.say(SHORT).error is None
            assert served.opened == 1
            assert served.metric("orpheus_contexts_total") == 1
            until_nothing_is_left(served)


def converse(name: str) -> tuple[list[float], dict[str, int], int]:
    """A minute with ten interruptions: the length of each answer, ends of contexts, sockets."""
    client = BY_NAME[name]
    with serving(*SIMULATED) as served, Actor(client.environment, *client.program) as actor:
        actor.open(served)
        lengths = []
        for _ in range(BARGE_INS):
            assert actor.interrupt(ANSWER * 4).error is None
            lengths.append(actor.say(ANSWER).seconds)
        until_nothing_is_left(served)
        ends = {
            outcome: int(served.metric("orpheus_contexts_total", outcome=outcome))
            for outcome in ("done", "cancelled", "disconnected", "failed")
        }
        return lengths, ends, served.opened


def test_a_minute_of_conversation() -> None:
    """After each of ten interruptions the answer is heard whole and nothing else is; nothing leaks."""
    with ThreadPoolExecutor(len(LISTENED)) as pool:
        found = dict(zip(LISTENED, pool.map(converse, LISTENED), strict=True))
    for name, (lengths, ends, opened) in found.items():
        assert lengths == [pytest.approx(lengths[0], abs=2 * MARK)] * BARGE_INS, name
        assert ends["done"] == BARGE_INS
        assert ends["failed"] == 0
        # LiveKit's own plugins close their socket, and the protocol has no other way.
        closes = name == "livekit_baseten_qwen3"
        assert ends["disconnected" if closes else "cancelled"] == BARGE_INS
        # And every 15 s it looks whether the one it has lives: a turn that begins just then opens another.
        once = 1 + BARGE_INS if closes else 1
        assert once <= opened <= (once + LOOKS if closes else once)
