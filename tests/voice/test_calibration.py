"""What a model is calibrated on: files, and what it says itself."""

import re
from pathlib import Path

import pytest
import torch

from engine_build.calibration import PROMPTS, read, read_prompts, speak
from orpheus_ws import tokens
from orpheus_ws.engine.checkpoint import open_checkpoint
from orpheus_ws.errors import StartupError
from tests.voice.torch_checkpoints import encoder

# More threads only wait for each other.
torch.set_num_threads(1)

FRAME = tokens.frame_ids((0, 1, 2, 3, 4, 5, 4095))


def lines(folder: Path, *content: str) -> Path:
    """A file of these lines."""
    file = folder / "lines"
    file.write_text("\n".join(content), encoding="utf-8")
    return file


def test_a_file_is_read(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A line is all its ids, or a text that gets the framing of a prompt, then its audio."""
    spoken = f'{{"voice": "leo", "text": "Hi <custom_token_9>.", "audio": {FRAME + FRAME[:3]}}}'
    made = read(lines(tmp_path, '{"ids": [5, 6]}', "", spoken), encoder(tiny_checkpoint))
    encode = encoder(tiny_checkpoint)
    framed = tokens.prompt_ids("leo", "Hi <custom_token_9>.", encode)
    assert made.sequences == [[5, 6], [*framed, *FRAME, *FRAME[:3]]]
    assert made.ids == 2 + len(framed) + 10
    assert made.audio_ids == 10


BAD = {
    "no JSON": ("{", "JSON object"),
    "no object": ("[1]", "JSON object"),
    "no UTF-8": ('{"text": "\udc80"}', "JSON object"),
    "an unknown key": ('{"ids": [5], "speaker": "leo"}', "JSON object"),
    "an id that is none": ('{"ids": [156938]}', "JSON object"),
    "no id": ('{"ids": []}', "JSON object"),
    "codes instead of ids": ('{"voice": "leo", "text": "Hi.", "audio": [0, 1]}', "JSON object"),
    "nothing": ("{}", "either `ids`, or"),
    "a text without speech": ('{"voice": "leo", "text": "Hi."}', "either `ids`, or"),
    "both": ('{"ids": [5], "text": "Hi."}', "either `ids`, or"),
    "ids out of turn": (f'{{"voice": "leo", "text": "Hi.", "audio": {FRAME[1:]}}}', "out of turn"),
}


@pytest.mark.parametrize(("line", "advice"), BAD.values(), ids=BAD)
def test_a_line_that_is_none(tiny_checkpoint: Path, tmp_path: Path, line: str, advice: str) -> None:
    """It is refused in one line of ours that names it and says what it must be."""
    file = tmp_path / "lines"
    file.write_bytes(f'{{"ids": {FRAME}}}\n{line}'.encode(errors="surrogateescape"))
    with pytest.raises(StartupError, match=f"line 2 of {re.escape(str(file))}.*{advice}") as caught:
        read(file, encoder(tiny_checkpoint))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", '{"ids": [5, 6, 128257]}'])
def test_a_file_without_audio(tiny_checkpoint: Path, tmp_path: Path, content: str) -> None:
    """Text alone is refused: its scales would be wrong for speech."""
    with pytest.raises(StartupError, match="no audio id"):
        read(lines(tmp_path, content), encoder(tiny_checkpoint))


def test_files_that_are_not_there(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A missing file and a list of no prompts say so."""
    with pytest.raises(StartupError, match="cannot read"):
        read(tmp_path / "none", encoder(tiny_checkpoint))
    with pytest.raises(StartupError, match="cannot read"):
        read_prompts(tmp_path / "none")
    with pytest.raises(StartupError, match="one a line"):
        read_prompts(lines(tmp_path, "", "  "))


def test_the_model_speaks(tiny_checkpoint: Path) -> None:
    """Each text is spoken whole, by the voices in turn, and the same every time."""
    texts = [f"Number {number}." for number in range(10)]
    made = speak(open_checkpoint(str(tiny_checkpoint), "torch"), texts, device="cpu")
    encode = encoder(tiny_checkpoint)
    for number, (text, sequence) in enumerate(zip(texts, made.sequences, strict=True)):
        voice = tokens.VOICES[number % 8]
        prompt = tokens.prompt_ids(voice, text, encode)
        assert sequence[: len(prompt)] == prompt
        speech = tokens.FrameAssembler()
        assert speech.push(sequence[len(prompt) :])
        speech.finish()
        assert (speech.invalid, speech.dropped, speech.tokens % 7) == (0, 0, 0)
    assert speak(open_checkpoint(str(tiny_checkpoint), "torch"), texts, device="cpu") == made


def test_a_prompt_that_is_too_long(tiny_checkpoint: Path) -> None:
    """It is named by its place."""
    with pytest.raises(StartupError, match="prompt 2 cannot be spoken"):
        speak(open_checkpoint(str(tiny_checkpoint), "torch"), ["Hi.", "a b " * 2000], device="cpu")


def test_our_own_prompts() -> None:
    """They are many, all different, and use every tag."""
    texts = read_prompts(PROMPTS)
    assert len(set(texts)) == len(texts) >= 40
    for tag in tokens.TAGS:
        assert any(f"<{tag}>" in text for text in texts), tag
