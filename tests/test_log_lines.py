"""Lines of the log: nobody waits for them, whatever becomes of the descriptor."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orpheus_ws.log_lines import Lines

LONG = "x" * 1000


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Its two ends; it holds a page."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    yield reading, writing
    os.close(reading)


def written(reading: int, writing: int) -> list[bytes]:
    """Everything that comes out of a pipe until nobody writes to it any more."""
    os.close(writing)
    with os.fdopen(os.dup(reading), "rb") as stream:
        return stream.read().splitlines()


@settings(max_examples=20)  # a thread each
@given(st.lists(st.text(st.characters(exclude_characters="\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"))))
def test_in_order(texts: list[str]) -> None:
    """Every line is written once, in order, whatever is in it: half a surrogate pair, too."""
    reading, writing = os.pipe()
    lines = Lines(writing)
    for text in texts:
        lines.put(text[:50])
    lines.finish(60)
    got = written(reading, writing)
    os.close(reading)
    assert got == [text[:50].encode(errors="backslashreplace") for text in texts]
    assert lines.dropped == 0


def test_a_signal_in_the_middle_of_a_line(pipe: tuple[int, int]) -> None:
    """Whoever ends the process while its own thread puts a line waits no longer than he would for a reader."""
    lines = Lines(pipe[1])
    with lines._waiting.mutex:
        lines.finish(0.0)
    lines.put("after it")
    lines.finish(60)
    assert written(*pipe) == [b"after it"]


def test_nobody_reads(pipe: tuple[int, int]) -> None:
    """What does not fit is dropped and counted, nobody waits, and later lines go on when one reads."""
    reading, writing = pipe
    lines = Lines(writing, most=10)
    for number in range(100):
        lines.put(f"{number} {LONG}")
    lines.finish(0.0)
    assert lines.dropped >= 80
    with os.fdopen(os.dup(reading), "rb") as stream:
        first = [int(stream.readline().split()[0]) for _ in range(100 - lines.dropped)]
        # What fits is the first ten, and what came when the thread had taken some of them.
        assert first[:10] == list(range(10))
        assert first == sorted(set(first))
        lines.finish(60)
        lines.put("again")
        assert stream.readline() == b"again\n"
    lines.finish(60)
    os.close(writing)


@pytest.mark.parametrize("broken", ["full", "closed", "no reader"])
def test_what_cannot_be_written(broken: str) -> None:
    """A full disk, a closed descriptor and a pipe without a reader cost lines, and nothing else."""
    reading, writing = os.pipe()
    if broken == "full":
        os.close(writing)
        writing = os.open("/dev/full", os.O_WRONLY)
    os.close(reading)
    if broken == "closed":
        os.close(writing)
    lines = Lines(writing)
    for _ in range(3):
        lines.put("lost")
    lines.finish(60)
    assert lines.dropped == 3
    if broken != "closed":
        os.close(writing)


def test_space_again(tmp_path: Path) -> None:
    """A line is written once the disk has space again."""
    descriptor = os.open("/dev/full", os.O_WRONLY)
    lines = Lines(descriptor)
    lines.put("lost")
    lines.finish(60)
    file = tmp_path / "log"
    with file.open("w") as space:
        os.dup2(space.fileno(), descriptor)
    lines.put("written")
    lines.finish(60)
    os.close(descriptor)
    assert file.read_text() == "written\n"
    assert lines.dropped == 1
