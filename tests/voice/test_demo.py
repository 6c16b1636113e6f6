"""The demo: one command, speech in a file."""

import subprocess
import sys
import wave
from pathlib import Path

import numpy as np

from orpheus_ws import messages as m
from tests.harness import pcm, peer, server
from tests.server_peers import metric
from tests.voice.recogniser import Recogniser, matched, words_of

TEXT = (
    "The next train to the city leaves in twenty minutes. "
    "The doctor will call you back this afternoon."
)


async def test_tags_alone_are_no_failure() -> None:
    """A segment that has only a tag is a silence to this voice; what follows is spoken."""
    settings = ("engine.name=pocket", "codec.name=streaming")
    async with server(*settings) as started, peer(started.address.url) as connected:
        await connected.say("a", "<laugh>\n\nHello there.\n\n<sigh>")
        received = await connected.utterance("a")
        assert isinstance(received[-1], m.Done)
        assert [x.text for x in received if isinstance(x, m.Segment)] == ["Hello there."]
        assert pcm(received)
        # Nor does the silence count as another first sentence.
        assert await metric(started, "orpheus_time_to_first_sentence_seconds_count") == 1


def test_say_with_a_server_of_its_own(tmp_path: Path) -> None:
    """`say --local` starts a server, speaks through a socket into a file, and stops it."""
    file = tmp_path / "hello.wav"
    said = subprocess.run(
        [sys.executable, "-m", "orpheus_ws", "say", "--local", "-o", str(file), "--", TEXT],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    for figure in ("time to first byte", "time to first audio", "real-time factor", "audio"):
        assert figure in said.stderr
    with wave.open(str(file)) as wav:
        assert (wav.getnchannels(), wav.getsampwidth(), wav.getframerate()) == (1, 2, 24_000)
        samples = np.frombuffer(wav.readframes(wav.getnframes()), "<i2")
    said_words = words_of(TEXT)
    assert matched(said_words, Recogniser().words(samples)) >= len(said_words) // 2
