"""`orpheus-ws doctor` of the embedded voice, with torch."""

from pathlib import Path

import pytest

from orpheus_ws import config
from orpheus_ws.config import EngineConfig
from orpheus_ws.doctor import parts
from tests.doctor_runs import doctor, serve_starts, settings, without

# Each starts processes, which take their time.
pytestmark = pytest.mark.slow

FREE_PORTS = settings("server.port=0", "server.metrics_port=0")


def test_the_embedded_voice() -> None:
    """With the extra `pocket` installed, the default configuration has no problem."""
    examined = doctor(*FREE_PORTS, prelude="")
    assert examined.code == 0, examined.printed
    assert examined.checks["engine"]["found"] == "pocket, on cpu, 8 streams (default)"
    assert examined.checks["codec"]["found"] == "streaming, on cpu, 9 slots"
    assert "hibari-tts" in examined.checks["extra_pocket"]["found"]
    assert examined.checks["extra_pocket"]["advice"] == ""
    assert examined.checks["torch"]["status"] == "ok"


@pytest.mark.parametrize(
    ("setting", "advice"),
    [
        ("codec.options.device=cuda:99", "codec.options.device"),
        ("codec.options.device=grandmother", "codec.options.device"),
        ("codec.options.threads=0", "a whole number of at least 1"),
        ("codec.weights=NOWHERE", "config.json"),
        pytest.param(f"codec.weights=/{'long' * 2000}", "config.json", id="a path too long"),
    ],
)
def test_a_codec_that_cannot_start(setting: str, advice: str, tmp_path: Path) -> None:
    """A device that torch cannot use and weights that are not there are problems, as for `serve`."""
    given = settings(setting.replace("NOWHERE", str(tmp_path)))
    examined = doctor(*FREE_PORTS, *given, prelude="")
    assert examined.code == 1
    assert examined.report["problems"] == 1
    assert examined.checks["codec"]["status"] == "problem"
    assert advice in examined.checks["codec"]["advice"]
    assert not serve_starts(*FREE_PORTS, *given)


def test_what_is_missing_for_the_embedded_voice() -> None:
    """Without `hibari` the engine is a problem, with the command that installs it."""
    examined = doctor(*FREE_PORTS, prelude=without("hibari"))
    assert examined.code == 1
    assert examined.checks["engine"]["status"] == "problem"
    assert "pip install 'orpheus-ws[pocket]'" in examined.checks["engine"]["advice"]


def test_the_torch_engine(tiny_checkpoint: Path) -> None:
    """With a checkpoint it has no problem; without one, or with half of one, it has."""
    for model, status, says in (
        (str(tiny_checkpoint), "ok", "torch, on cpu, 8 streams (default)"),
        ("", "problem", "engine.options.model"),
        (str(tiny_checkpoint.parent), "problem", "config.json"),
    ):
        check = parts.engine(EngineConfig(name="torch", options={"model": model}), {}).check
        assert check.status == status
        assert says in check.found + check.advice


def test_orpheus_with_the_codec_of_the_embedded_voice(tmp_path: Path) -> None:
    """It would speak noise, which is warned of; with other weights or another engine nothing is said."""
    (tmp_path / "config.json").touch()
    for engine, weights, status in (
        ("torch", "pocket", "warning"),
        ("trtllm", "pocket", "warning"),
        ("pocket", "pocket", "ok"),
        ("torch", str(tmp_path), "ok"),
    ):
        loaded = config.load(flags=[f"engine.name={engine}", f"codec.weights={weights}"])
        check = parts.codec(loaded, 8).check
        assert check.status == status
        assert ("snac_24khz" in check.advice) == (status == "warning")
