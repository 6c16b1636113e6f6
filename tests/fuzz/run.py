"""One target under atheris, in a process of its own, which libFuzzer ends.

Rule: our code is imported here for the first time, so that what inputs reach in it is seen.
"""

import sys

import atheris


def main(name: str, *flags: str) -> None:
    """Look for faults in the target of that name. `flags` and folders are libFuzzer's."""
    # Not of regular expressions: patterns that are replaced take no positions.
    atheris.enabled_hooks.add("str")
    with atheris.instrument_imports(include=["orpheus_ws", "tests.fuzz.targets", "tomllib"]):
        from tests.fuzz.targets import load

        target = load(name)
    atheris.Setup(["fuzz", *flags], target.one)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
