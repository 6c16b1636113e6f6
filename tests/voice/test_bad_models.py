"""What `serve` and `engine_build` say of a model or a machine that cannot be, as a user hears it.

Each command runs as it would in a terminal, to its end: one line on standard error that says what to do,
exit code 1, nothing announced, and no process left.
"""

import json
import shutil
import signal
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from orpheus_ws import manifest as manifests
from orpheus_ws.engine.checkpoint_files import hash_files
from orpheus_ws.manifest import hash_of
from orpheus_ws.tokens import SAMPLES_PER_FRAME
from tests.doctor_runs import settings
from tests.voice.fake_trtllm import FOLDER, FREE_BYTES
from tests.voice.torch_checkpoints import SENTENCE, cut_short, spoilt
from tests.voice.warm_commands import Ended, WarmCommands

# Each starts processes, which take their time.
pytestmark = pytest.mark.slow

ENGINES: Final = ("torch", "trtllm")
STAND_IN: Final = f"import sys; sys.path.insert(0, {str(FOLDER)!r})"
GPU: Final = f"""{STAND_IN}
import torch
torch.cuda.is_available = lambda: True
torch.cuda.get_device_properties = lambda index: None
torch.cuda.mem_get_info = lambda: ({FREE_BYTES}, {FREE_BYTES})
"""
"""TensorRT-LLM's stand-in, and a GPU that torch believes in."""
LITTLE_MEMORY: Final = """
import resource
from pathlib import Path
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + 2**30,) * 2)
"""
QUIET: Final = settings(
    "server.port=0", "server.metrics_port=0", "codec.name=simulated", "engine.uncalibrated=2"
)


def serve(
    commands: WarmCommands, engine: str, model: Path, *options: str, prelude: str = GPU
) -> Ended:
    """`orpheus-ws serve` to its end."""
    given = ("--engine", engine, "--model", str(model), *QUIET, *settings(*options))
    return commands.run("orpheus-ws", "serve", *given, prelude=prelude)


def assert_refused(ended: Ended, advice: str) -> None:
    """One line that says what to do, and nothing more of it."""
    assert ended.code == 1, ended.stderr
    assert ended.stdout == ""
    # Warnings that were logged before it are JSON.
    said = [line for line in ended.stderr.splitlines() if not line.startswith("{")]
    assert len(said) == 1, ended.stderr
    assert said[0].startswith(("orpheus-ws: ", "engine_build: "))
    assert advice in said[0]
    assert "Traceback" not in ended.stderr
    assert not ended.left


@pytest.fixture(scope="module")
def described(
    commands: WarmCommands, tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The tiny checkpoint with a manifest, made by the command."""
    folder = tmp_path_factory.mktemp("described") / "model"
    shutil.copytree(tiny_checkpoint, folder)
    limits = ("--max-batch-size", "4", "--max-tokens", "300", "--max-prompt-tokens", "100")
    given = ("manifest", str(folder), "--voices", "ava, ben", "--tensorrt-llm", "1.2.1")
    ended = commands.run("engine_build", *given, *limits)
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.stdout == (
        f"Wrote {folder / manifests.NAME}: weights not quantised, KV cache as the engine is told; voices "
        "ava (the default), ben; at most 4 streams of 100 + 300 ids; TensorRT-LLM 1.2.1.\n"
    )
    return folder


# Models -------------------------------------------------------------------------------------------

Spoil = Callable[[Path, Path], object]


def _changed(name: str, **changes: Any) -> Spoil:
    return lambda model, folder: spoilt(model, folder, name, **changes)


def _cut(name: str, left: float | None) -> Spoil:
    return lambda model, folder: cut_short(model, folder, name, left)


SPOILT: Final[dict[str, tuple[Spoil, str]]] = {
    "of another architecture": (
        _changed("config.json", architectures=["GPT2LMHeadModel"]),
        "is not a LlamaForCausalLM: give the directory of an Orpheus checkpoint",
    ),
    "without a tokenizer": (_cut("tokenizer.json", None), "no tokenizer.json can be read"),
    "with Llama's vocabulary": (
        _changed("config.json", vocab_size=128_256),
        "a vocabulary of 128256, and Orpheus's is 156940",
    ),
    "with a shard cut short": (_cut("model.safetensors", 0.9), "so it was cut short"),
    "without RoPE keys": (
        _changed("config.json", rope_theta=None, rope_scaling=None),
        "give it `rope_theta` and `rope_scaling` as published",
    ),
}


@pytest.mark.parametrize(("spoil", "advice"), SPOILT.values(), ids=SPOILT)
def test_a_model_that_is_none(
    commands: WarmCommands, tiny_checkpoint: Path, tmp_path: Path, spoil: Spoil, advice: str
) -> None:
    """Both engines refuse it in the same words, `verify` finds it, and no manifest is made of it."""
    spoil(tiny_checkpoint, tmp_path)
    for engine in ENGINES:
        assert_refused(serve(commands, engine, tmp_path), advice)
    verified = commands.run("engine_build", "verify", str(tmp_path))
    assert verified.code == 1
    assert any(advice in line for line in verified.stderr.splitlines())
    assert_refused(commands.run("engine_build", "manifest", str(tmp_path)), advice)
    assert not (tmp_path / manifests.NAME).exists()


# Manifests ----------------------------------------------------------------------------------------


def _with_manifest(described: Path, folder: Path, **changes: Any) -> Path:
    """The model, with these keys of its manifest changed."""
    for file in described.iterdir():
        if file.name != manifests.NAME:
            (folder / file.name).symlink_to(file)
    made = manifests.read(described / manifests.NAME)
    manifests.write(folder / manifests.NAME, msgspec.structs.replace(made, **changes))
    return folder


@pytest.mark.parametrize("engine", ENGINES)
def test_a_manifest_of_another_build(
    commands: WarmCommands, described: Path, tmp_path: Path, engine: str
) -> None:
    """A file that changed after the manifest was made is refused, and named."""
    spoilt(described, tmp_path, "generation_config.json", temperature=0.1)
    advice = "generation_config.json is not the file of the manifest"
    assert_refused(serve(commands, engine, tmp_path), advice)


def test_a_manifest_for_another_tensorrt_llm(
    commands: WarmCommands, described: Path, tmp_path: Path
) -> None:
    """What was measured with one version is not promised with another; `torch` does not care."""
    folder = _with_manifest(described, tmp_path, built_with={"tensorrt_llm": "1.3.0"})
    advice = "is for TensorRT-LLM 1.3.0, and 1.2.1 is installed: install that one"
    assert_refused(serve(commands, "trtllm", folder), advice)


@pytest.mark.parametrize(
    ("engine", "option", "advice"),
    [
        ("torch", "engine.uncalibrated=5", "a batch of 4: lower engine.capacity to that"),
        ("trtllm", "engine.uncalibrated=5", "a batch of 4: lower engine.capacity to that"),
        ("torch", "engine.options.context=500", "context is 500 and the model's manifest says 400"),
        (
            "trtllm",
            "engine.options.max_tokens=500",
            "max_tokens is 500 and the model's manifest says 300",
        ),
        (
            "trtllm",
            "engine.options.voices=tara",
            "voices is tara and the model's manifest says ava, ben",
        ),
    ],
)
def test_an_option_against_the_manifest(
    commands: WarmCommands, described: Path, engine: str, option: str, advice: str
) -> None:
    """A capacity beyond the manifest's limits and an option that says otherwise are refused."""
    assert_refused(serve(commands, engine, described, option), advice)


def test_weights_with_other_numbers(
    commands: WarmCommands, described: Path, tmp_path: Path
) -> None:
    """`verify` reads all of the weights, and names the file; the headers are the same."""
    cut_short(described, tmp_path, "model.safetensors", 1.0)
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.seek(-1000, 2)
        file.write(b"\1")
    verified = commands.run("engine_build", "verify", str(tmp_path), "--json")
    (finding,) = json.loads(verified.stdout)["findings"]
    assert (verified.code, finding["severity"]) == (1, "problem")
    assert "model.safetensors is not the file of the manifest" in finding["text"]


# Machines -----------------------------------------------------------------------------------------


def test_no_gpu(commands: WarmCommands, tiny_checkpoint: Path) -> None:
    """Where a GPU is needed and there is none, as here, each engine says which setting or machine."""
    device = "engine.options.device=cuda"
    assert_refused(
        serve(commands, "torch", tiny_checkpoint, device, prelude=""), "engine.options.device"
    )
    assert_refused(
        serve(commands, "trtllm", tiny_checkpoint, prelude=STAND_IN), "no GPU can be used"
    )


def test_too_little_memory(commands: WarmCommands, tiny_checkpoint: Path) -> None:
    """Memory that is too little for the slots says what to lower, before anything is announced."""
    slots = ("engine.uncalibrated=64", "engine.options.context=131072")
    assert_refused(
        serve(commands, "torch", tiny_checkpoint, *slots, prelude=LITTLE_MEMORY),
        "lower engine.capacity",
    )
    assert_refused(
        serve(commands, "trtllm", tiny_checkpoint, "engine.uncalibrated=4000000"),
        "raise engine.options.max_num_tokens",
    )
    assert_refused(
        serve(
            commands,
            "trtllm",
            tiny_checkpoint,
            "engine.uncalibrated=400000",
            "engine.options.max_num_tokens=500000",
        ),
        "too little GPU memory",
    )


def test_no_directory(commands: WarmCommands, tmp_path: Path) -> None:
    """A directory that is not there is refused by each command."""
    nowhere = tmp_path / "nowhere"
    for engine in ENGINES:
        assert_refused(serve(commands, engine, nowhere), "is not a directory")
    assert_refused(commands.run("engine_build", "manifest", str(nowhere)), "is not a directory")
    assert "is not a directory" in commands.run("engine_build", "verify", str(nowhere)).stderr


# The chain ----------------------------------------------------------------------------------------


def test_what_was_made_is_served(commands: WarmCommands, described: Path, tmp_path: Path) -> None:
    """A model with its manifest passes `verify` for both engines, and speaks with its first voice."""
    for engine in ENGINES:
        verified = commands.run("engine_build", "verify", str(described), "--for", engine)
        assert (verified.code, verified.stdout) == (0, "ok\n")
    given = ("--engine", "torch", "--model", str(described), *QUIET)
    running = commands.start("orpheus-ws", "serve", *given, pipe=True)
    with running.out.open(encoding="utf-8") as announced:
        url = json.loads(announced.readline())["url"]
        file = tmp_path / "noise.wav"
        said = commands.run("orpheus-ws", "say", "--url", url, "-o", str(file), SENTENCE)
        other = ("--voice", "tara", "-o", str(tmp_path / "other.wav"))
        unknown = commands.run("orpheus-ws", "say", "--url", url, *other, SENTENCE)
        running.stop(signal.SIGTERM)
    assert (said.code, commands.wait(running).code) == (0, 0)
    assert unknown.code == 1
    assert "use one of the voices: ava, ben" in unknown.stderr
    with wave.open(str(file)) as wav:
        assert wav.getframerate() == 24_000
        assert wav.getnframes() > 5 * SAMPLES_PER_FRAME


def test_a_manifest_made_again(commands: WarmCommands, described: Path, tmp_path: Path) -> None:
    """What was measured stays with an equal model, and is dropped with a message with another."""
    folder = tmp_path / "model"
    shutil.copytree(described, folder)
    made = manifests.read(folder / manifests.NAME)
    measured = msgspec.convert(
        {
            "gpu": "NVIDIA H100",
            "driver": "580.1",
            "model": made.model.sha256,
            "streams": 100,
            "date": "2026-11-30",
        },
        manifests.Capacity,
    )
    manifests.write(folder / manifests.NAME, manifests.add_capacity(made, measured))
    again = commands.run("engine_build", "manifest", str(folder), "--voices", "ava")
    assert again.code == 0
    assert "measure again" in again.stderr
    assert "changed: the voices were ava, ben\n" in again.stderr
    assert manifests.read(folder / manifests.NAME).capacity == (measured,)

    (folder / "generation_config.json").write_text("{}", encoding="utf-8")
    changed = commands.run("engine_build", "manifest", str(folder), "--voices", "ava")
    assert changed.code == 0
    assert "dropped: 100 streams measured on NVIDIA H100, 2026-11-30" in changed.stderr
    new = manifests.read(folder / manifests.NAME)
    assert new.capacity == ()
    files = hash_files(folder)
    assert (new.model.files, new.model.sha256) == (files, hash_of(files))


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (("--voices", " , "), "--voices"),
        (("--voices", "ava,ava"), "--voices"),
        (("--max-batch-size", "8000"), "--max-num-tokens"),
        (("--max-tokens", "200000"), "lower --max-tokens"),
    ],
)
def test_limits_that_cannot_be(
    commands: WarmCommands, tiny_checkpoint: Path, arguments: tuple[str, ...], advice: str
) -> None:
    """Limits that contradict each other or the model are refused, naming the option."""
    ended = commands.run("engine_build", "manifest", str(tiny_checkpoint), *arguments)
    assert_refused(ended, advice)
    assert not (tiny_checkpoint / manifests.NAME).exists()
