"""Says everything that is wrong with a checkpoint before an engine finds the first of it.

Rule: what is wrong is found by `orpheus_ws.engine.checkpoint`, which the engines ask as well; here all
of the weights are read and compared with the manifest, and what an engine can live with is told.
"""

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import msgspec

from orpheus_ws import tokens
from orpheus_ws.engine.checkpoint import Checkpoint, EngineName, examine
from orpheus_ws.engine.checkpoint_files import Told, nobody


class Severity(StrEnum):
    """How much a finding matters."""

    WARNING = "warning"
    """It can be served, but not as well, or less is known of it."""
    PROBLEM = "problem"
    """No engine, or not the one that was asked for, serves it well."""


class Finding(msgspec.Struct, frozen=True):
    """One line that says what is wrong and what to do."""

    severity: Severity
    text: str


class Report(msgspec.Struct, frozen=True):
    """All of them."""

    model: str
    findings: list[Finding]

    @property
    def problems(self) -> int:
        """How many are problems."""
        return sum(finding.severity is Severity.PROBLEM for finding in self.findings)


def verify(folder: Path, engine: EngineName | None, told: Told = nobody) -> Report:
    """Examine the checkpoint, all of it, and for one engine or for any.

    Blocking: where there is a manifest it reads every byte, of which `told` is told.
    """
    checkpoint, faults = examine(folder, compared="everything", told=told)
    findings = [Finding(Severity.PROBLEM, fault) for fault in faults]
    if checkpoint is not None:
        findings += [Finding(Severity.WARNING, text) for text in _warnings(checkpoint, engine)]
    return Report(str(folder), findings)


def _warnings(checkpoint: Checkpoint, engine: EngineName | None) -> Iterator[str]:
    config = checkpoint.config
    if config.vocab_size != tokens.VOCABULARY:
        yield (
            f"the vocabulary is padded to {config.vocab_size}: an engine can say the ids above "
            f"{tokens.VOCABULARY - 1}, which are skipped; if orpheus_invalid_tokens_total grows, set "
            "engine.options.legal_bias"
        )
    if checkpoint.manifest is None:
        yield (
            "there is no manifest, so that nothing shows when a file changes: make one with `python "
            "-m engine_build manifest`"
        )
    elif engine == "trtllm" and "tensorrt_llm" not in checkpoint.manifest.built_with:
        yield (
            "the manifest names no TensorRT-LLM, so that nothing shows when another is installed: "
            "make it again with --tensorrt-llm, or where it is installed"
        )
    if engine == "trtllm" and checkpoint.quantization.weights is None:
        yield (
            "the weights are not quantised, and take twice the memory and the time to read: make "
            "FP8 of them with `python -m engine_build quantize`"
        )
