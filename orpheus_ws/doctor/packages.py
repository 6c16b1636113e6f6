"""The packages that are installed, against what this package says it needs."""

from collections.abc import Iterable, Iterator
from importlib import metadata
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from orpheus_ws.doctor.check import Check, Status
from orpheus_ws.named_parts import install_advice

DISTRIBUTION: Final = "orpheus-ws"
EXTRAS: Final = {
    "codec": "SNAC",
    "pocket": "the embedded voice",
    "http": "requests over HTTP",
    "bench": "the benchmarks",
    "torch": "Orpheus on PyTorch",
    "trtllm": "Orpheus on TensorRT-LLM",
    "otel": "OpenTelemetry traces",
}
"""The extras that somebody who serves may want, and what for."""


def examine() -> list[Check]:
    """The base and each extra: versions, what is missing, what is of a wrong version."""
    try:
        declared = [Requirement(text) for text in metadata.requires(DISTRIBUTION) or ()]
    except metadata.PackageNotFoundError:
        advice = "pip install '.[pocket]' in its folder"
        unknown = Status.WARNING, "unknown: orpheus-ws is not installed, only imported", advice
        return [Check(name, *unknown) for name in ("packages", *map(_name, EXTRAS))]
    return [_base(declared), *(_extra(declared, extra) for extra in EXTRAS)]


def _base(declared: list[Requirement]) -> Check:
    present, missing, wrong = _installed(_needed(declared, ""))
    if missing or wrong:
        status = Status.PROBLEM if missing else Status.WARNING
        return Check("packages", status, _found(present, missing, wrong), "pip install orpheus-ws")
    return Check("packages", Status.OK, _found(present, missing, wrong))


def _extra(declared: list[Requirement], extra: str) -> Check:
    """Not to have an extra is no fault: whether the configuration needs it, the parts tell."""
    needed = list(_needed(declared, extra))
    if not needed:
        older = "unknown: what is installed of orpheus-ws is older than its code"
        return Check(_name(extra), Status.WARNING, older, "install it again, as you did before")
    present, missing, wrong = _installed(needed)
    advice = f"for {EXTRAS[extra]}: {install_advice(extra)}"
    absent = Status.ABSENT if missing else Status.OK
    return Check(
        _name(extra),
        Status.WARNING if wrong else absent,
        _found(present, missing, wrong),
        advice if missing or wrong else "",
    )


def _name(extra: str) -> str:
    return f"extra_{extra}"


def _needed(declared: list[Requirement], extra: str) -> Iterator[Requirement]:
    """What an extra adds to the base, or the base itself when `extra` is empty."""
    for requirement in declared:
        conditional = requirement.marker is not None and "extra" in str(requirement.marker)
        if conditional is not bool(extra):
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            if canonicalize_name(requirement.name) == DISTRIBUTION:
                for other in requirement.extras:
                    yield from _needed(declared, other)
            else:
                yield requirement


def _installed(needed: Iterable[Requirement]) -> tuple[list[str], list[str], list[str]]:
    """Names with versions of what is there, names of what is missing, and what does not fit."""
    present, missing, wrong = [], [], []
    for requirement in needed:
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            missing.append(requirement.name)
            continue
        if requirement.specifier.contains(version, prereleases=True):
            present.append(f"{requirement.name} {version}")
        else:
            wrong.append(f"{requirement.name} {version} (not {requirement.specifier})")
    return present, missing, wrong


def _found(present: list[str], missing: list[str], wrong: list[str]) -> str:
    groups = [", ".join(present)] if present else []
    groups += [f"missing: {', '.join(missing)}"] if missing else []
    groups += [f"does not fit: {', '.join(wrong)}"] if wrong else []
    return "; ".join(groups)
