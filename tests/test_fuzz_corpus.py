"""Fuzzing: the inputs that were written by hand, without a fuzzer, and what each target would notice."""

import hmac
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from orpheus_ws import access_tokens, manifest, pcm, settings, text
from orpheus_ws.client.utterance import Utterance
from orpheus_ws.surfaces import cartesia, openai
from orpheus_ws.tokens import FrameAssembler
from orpheus_ws.wire import native
from tests.fuzz.targets import corpus, load, names, planted

INPUTS = {f"{name}/{path.name}": (name, path) for name in names() for path in corpus(name)}


@pytest.mark.parametrize(("name", "path"), INPUTS.values(), ids=INPUTS)
def test_corpus(name: str, path: Path) -> None:
    """What was written by hand, and what was once a fault, is none."""
    load(name).one(path.read_bytes())


_LINES = "one line\nand another"
_NEVER = re.compile(r"(?!)")
_BELIEVING = SimpleNamespace(digest=hmac.digest, compare_digest=lambda _first, _second: True)
FAULTS: list[tuple[str, ModuleType | type, str, Any]] = [
    ("wire", native, "_advice", lambda said, _kind, _schema: said),
    (
        "wire",
        native.MsgpackWire,
        "encode_request",
        lambda _self, _message: b"\x81\xa4type\xa5close",
    ),
    ("text", text, "_TAG_START", _NEVER),
    ("text", text, "has_words", lambda segment: "a" in segment),
    ("surfaces", cartesia, "_event", lambda kind, *_, **__: kind),
    ("http_bodies", openai, "STREAMED_WAV_HEADER", b"RIFF"),
    ("keys", access_tokens, "hmac", _BELIEVING),
    ("configuration", settings, "describe", lambda _kind: _LINES),
    ("manifest", manifest, "describe_fault", lambda _error: _LINES),
    ("client", Utterance, "_note", lambda _self, message: message.context == "v"),
    ("frames", FrameAssembler, "finish", lambda _self: None),
    ("audio", pcm, "_ALAW", np.roll(pcm._ALAW, 1)),
]


@pytest.mark.parametrize(
    ("name", "owner", "part", "broken"),
    FAULTS,
    ids=[f"{name}-{part}" for name, _, part, _ in FAULTS],
)
def test_faults_are_noticed(
    name: str,
    owner: ModuleType | type,
    part: str,
    broken: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a part of ours that is wrong, the inputs of its target find that something does not hold."""
    one = load(name).one
    monkeypatch.setattr(owner, part, broken)
    inputs = [path.read_bytes() for path in corpus(name)]
    with pytest.raises((AssertionError, LookupError, ValueError)):
        list(map(one, inputs))


def test_the_planted_fault() -> None:
    """The target with a fault on purpose has it where it says."""
    planted.one(b"fuz")
    with pytest.raises(planted.Planted):
        planted.one(b"fuzz.")
