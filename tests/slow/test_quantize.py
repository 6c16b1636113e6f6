"""`engine_build quantize` runs: the tiny checkpoint becomes an FP8 one, which speaks.

It runs in an environment of its own, for it needs another transformers than the engine has here.
"""

import asyncio
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaForCausalLM

from orpheus_ws import messages as m
from orpheus_ws import tokens
from tests.harness import pcm, peer, server

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TEXTS = ("Hello! How are you?", "Yes.", "It is late, <yawn> and it rains.")
LAYERS = [
    f"model.layers.{layer}.{part}_proj"
    for layer in range(2)
    for part in (
        *("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o"),
        *("mlp.gate", "mlp.up", "mlp.down"),
    )
]

Quantize = Callable[..., subprocess.CompletedProcess[str]]


def environment(folder: Path) -> Path:
    """A Python with this one's packages, and the extra's in place of those that must differ."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    packages.joinpath("ours.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"),
            *("--constraint", "constraints.txt"),
            *project["optional-dependencies"]["quantize"],
        ],
        cwd=ROOT,
        check=True,
    )
    return python


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """What `quantize` is run with."""
    python = environment(tmp_path_factory.mktemp("environment"))
    return (str(python), "-m", "engine_build", "quantize")


@pytest.fixture(scope="module")
def quantize(command: tuple[str, ...], tiny_checkpoint: Path) -> Quantize:
    """Run it on the tiny checkpoint."""

    def run(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, str(tiny_checkpoint), str(out), *arguments],
            cwd=ROOT,
            # More threads only wait for each other.
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    return run


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few texts."""
    file = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    file.write_text("\n".join(TEXTS), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def made(
    quantize: Quantize, prompts: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The tiny checkpoint in FP8, and what the command said."""
    out = tmp_path_factory.mktemp("made") / "out"
    return out, quantize(out, "--prompts", str(prompts))


@pytest.fixture(scope="module")
def quantised(made: tuple[Path, subprocess.CompletedProcess[str]]) -> Path:
    """The tiny checkpoint in FP8."""
    out, done = made
    assert done.returncode == 0, done.stderr
    return out


def described(folder: Path, name: str = "config.json") -> dict[str, Any]:
    """A JSON file."""
    content: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
    return content


def test_what_it_says(made: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """It shows what it does, and at the end what it was calibrated on and what to do next."""
    out, done = made
    assert done.returncode == 0, done.stderr
    assert done.stderr.split() == ["Speaking", "Calibrating"]
    assert done.stdout.startswith(f"Wrote {out}, calibrated on 3 sequences of ")
    assert f"engine_build verify {out} --for trtllm\n" in done.stdout
    assert f"engine_build manifest {out}\n" in done.stdout


def test_the_form(quantised: Path, tiny_checkpoint: Path) -> None:
    """TensorRT-LLM finds what it reads: FP8 declared, RoPE as published, scales for every layer."""
    config = described(quantised)
    original = described(tiny_checkpoint)
    for name in ("architectures", "vocab_size", "rope_theta", "tie_word_embeddings"):
        assert config[name] == original[name]
    assert original["rope_scaling"].items() <= config["rope_scaling"].items()
    assert config["quantization_config"]["quant_method"] == "modelopt"
    assert described(quantised, "hf_quant_config.json")["quantization"] == {
        "quant_algo": "FP8",
        "kv_cache_quant_algo": "FP8",
        "exclude_modules": ["lm_head", "model.embed_tokens"],
    }
    state = load_file(quantised / "model.safetensors")
    scales = {f"{layer}.{kind}_scale" for layer in LAYERS for kind in ("weight", "input")}
    assert state.keys() - scales == load_file(tiny_checkpoint / "model.safetensors").keys()
    for name, tensor in state.items():
        if name in scales:
            assert (tensor.dtype, tensor.shape) == (torch.float32, ())
        else:
            layer = name.removesuffix(".weight") in LAYERS
            assert tensor.dtype == (torch.float8_e4m3fn if layer else torch.bfloat16), name


def test_the_rest_is_as_it_was(quantised: Path, tiny_checkpoint: Path) -> None:
    """Embedding and norms are equal to the bit; the tokenizer is a copy; all may read the files."""
    state = load_file(quantised / "model.safetensors")
    for name, tensor in load_file(tiny_checkpoint / "model.safetensors").items():
        if name.removesuffix(".weight") not in LAYERS:
            assert torch.equal(state[name], tensor), name
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (quantised / name).read_bytes() == (tiny_checkpoint / name).read_bytes()
    assert AutoTokenizer.from_pretrained(quantised)("<custom_token_2>").input_ids[1] == 128_258
    assert len({file.stat().st_mode for file in quantised.iterdir()}) == 1


def test_weights_are_close(quantised: Path, tiny_checkpoint: Path) -> None:
    """Each is off by a sixteenth of itself at most, or by half of FP8's least step: e4m3, 3 bits."""
    state = load_file(quantised / "model.safetensors")
    original = load_file(tiny_checkpoint / "model.safetensors")
    for layer in LAYERS:
        weight, scale = original[f"{layer}.weight"].float(), state[f"{layer}.weight_scale"]
        assert scale.item() == pytest.approx(weight.abs().max().item() / 448)
        error = (state[f"{layer}.weight"].float() * scale - weight).abs()
        assert (error <= torch.maximum(weight.abs() * 2**-4, scale * 2**-10) * 1.0001).all(), layer


def input_scales(folder: Path) -> dict[str, float]:
    """By layer."""
    state = load_file(folder / "model.safetensors")
    return {layer: state[f"{layer}.input_scale"].item() for layer in LAYERS}


@torch.inference_mode()
def largest_inputs(folder: Path, sequences: Sequence[Sequence[int]]) -> dict[str, float]:
    """What the largest number is that enters each layer when the model reads these sequences."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    found = dict.fromkeys(LAYERS, 0.0)

    def watch(layer: str) -> Callable[[torch.nn.Module, tuple[torch.Tensor]], None]:
        def look(_: torch.nn.Module, inputs: tuple[torch.Tensor]) -> None:
            found[layer] = max(found[layer], inputs[0].abs().max().item())

        return look

    for layer in LAYERS:
        model.get_submodule(layer).register_forward_pre_hook(watch(layer))
    for ids in sequences:
        model.model(torch.tensor([ids]))
    return found


def test_it_is_calibrated_on_the_speech(
    quantize: Quantize, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """The input scales are those that all ids of the file give, audio included; text alone gives others."""
    chance = torch.Generator().manual_seed(7)
    prompt = [128_259, 128_000, *range(70, 90), 128_009, 128_260, 128_261, 128_257]
    codes = torch.randint(4096, (80, 7), generator=chance).tolist()
    speech = [token for frame in codes for token in tokens.frame_ids(frame)]
    file = tmp_path / "calibration.jsonl"
    lines = [{"ids": prompt + speech}, {"ids": prompt}]
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    done = quantize(tmp_path / "out", "--calibration", str(file))
    assert done.returncode == 0, done.stderr
    assert f"2 sequences of {2 * len(prompt) + 560} ids, 560 of them audio" in done.stdout
    scales = input_scales(tmp_path / "out")
    spoken = largest_inputs(tiny_checkpoint, [prompt + speech])
    written = largest_inputs(tiny_checkpoint, [prompt])
    for layer in LAYERS:
        # The two transformers need not round alike.
        assert scales[layer] == pytest.approx(spoken[layer] / 448, rel=0.02)
        assert written[layer] < 0.97 * spoken[layer]


def test_the_cache_may_stay_as_it_is(
    quantize: Quantize, quantised: Path, prompts: Path, tmp_path: Path
) -> None:
    """`--kv bf16` declares no FP8 cache; the weights are equal to the byte: the cast adds no scale."""
    done = quantize(tmp_path / "out", "--prompts", str(prompts), "--kv", "bf16")
    assert done.returncode == 0, done.stderr
    assert "kv_cache_scheme" in described(quantised)["quantization_config"]
    assert "kv_cache_scheme" not in described(tmp_path / "out")["quantization_config"]
    written = described(tmp_path / "out", "hf_quant_config.json")["quantization"]
    assert written["kv_cache_quant_algo"] is None
    name = "model.safetensors"
    assert (tmp_path / "out" / name).read_bytes() == (quantised / name).read_bytes()


def test_a_full_disk_leaves_nothing(
    command: tuple[str, ...], tiny_checkpoint: Path, prompts: Path, tmp_path: Path
) -> None:
    """Weights that do not fit are said to, and neither OUT nor anything else is there."""
    done = subprocess.run(
        [*command, str(tiny_checkpoint), str(tmp_path / "out"), "--prompts", str(prompts)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        # No file may become larger.
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10_000_000,) * 2),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 1
    assert f"cannot write the weights of {tmp_path}/out: is there room" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("label", ["Speaking", "Calibrating"])
def test_interrupted_it_leaves_nothing(
    command: tuple[str, ...], tiny_checkpoint: Path, tmp_path: Path, label: str
) -> None:
    """Ctrl-C ends it with an exit code, and neither OUT nor anything else is there."""
    line = {"ids": [*range(200), *tokens.frame_ids([0] * 7)]}
    file = tmp_path / "calibration.jsonl"
    # More than can be read before the interrupt comes.
    file.write_text("\n".join([json.dumps(line)] * 5000), encoding="utf-8")
    how = ("--calibration", str(file)) if label == "Calibrating" else ()
    folder = tmp_path / "results"
    folder.mkdir()
    with subprocess.Popen(
        [*command, str(tiny_checkpoint), str(folder / "out"), *how],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline().strip() == label
        assert len(list(folder.iterdir())) == 1
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 6
    assert "Traceback" not in said
    assert list(folder.iterdir()) == []


def engine_build(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run another of the commands, in this environment."""
    command = [sys.executable, "-m", "engine_build", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


async def test_the_chain(quantised: Path, tmp_path: Path) -> None:
    """The result is verified, gets a manifest, and a server speaks with it over a socket, always alike."""
    model = tmp_path / "model"
    shutil.copytree(quantised, model)
    for step in (("verify", "--for", "trtllm"), ("manifest",), ("verify", "--for", "torch")):
        done = await asyncio.to_thread(engine_build, step[0], str(model), *step[1:])
        assert done.returncode == 0, (done.stdout, done.stderr)
    manifest = described(model, "manifest.json")
    assert manifest["quantization"] == {"weights": "FP8", "kv_cache": "FP8"}
    assert manifest["built_with"]["modelopt"].startswith("0.47.")
    heard = []
    async with (
        server(
            "engine.name=torch", f"engine.options.model={model}", "engine.capacity=2"
        ) as started,
        peer(started.address.url) as connected,
    ):
        for context in "ab":
            await connected.send(m.Open(context=context, sampling=m.Sampling(seed=3)))
            await connected.say(context, "Hello! How are you?")
            received = await connected.utterance(context)
            assert isinstance(received[-1], m.Done)
            heard.append(pcm(received))
    assert heard[0] == heard[1]
    assert len(heard[0]) > 3 * 2 * tokens.SAMPLES_PER_FRAME
