"""Parts that the configuration names: engines, codecs, exporters.

Rule: a name is a module of the package, or the dotted name of a module of your own; there is no
registry.
"""

import importlib
from pathlib import Path
from typing import Any

from orpheus_ws.errors import StartupError


def load_part(package: str, name: str, opener: str, *, extra: str) -> Any:
    """Import the part that the configuration names and return its function `opener`.

    `name` is a module of `package`, or a dotted name. Raises `StartupError` that says which name or
    which package is missing.
    """
    module_name = name if "." in name else f"{package}.{name}"
    kind = package.rpartition(".")[2]
    if not all(part.isidentifier() for part in name.split(".")):
        raise StartupError(f"{name!r} cannot be the name of a module; name the {kind} differently")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing == module_name or module_name.startswith(f"{missing}."):
            raise StartupError(_no_such_part(package, name, opener)) from error
        how = f"pip install {missing}" if "." in name else install_advice(extra)
        raise StartupError(f"{kind} {name!r} needs the package {missing!r}: {how}") from error
    except Exception as error:
        # What a library raises when it does not fit the machine is its own affair.
        raise StartupError(
            f"{kind} {name!r} cannot be imported ({type(error).__name__}); try: "
            f"python -c 'import {module_name}'"
        ) from error
    if not hasattr(module, opener):
        raise StartupError(_no_such_part(package, name, opener))
    return getattr(module, opener)


def install_advice(extra: str) -> str:
    """How to get what an extra of this package brings."""
    return f"pip install 'orpheus-ws[{extra}]', or '.[{extra}]' in a clone"


def known_parts(package: str, opener: str) -> list[str]:
    """Names of the modules of `package` that have the function `opener`; imports none of them."""
    folder = Path(__file__).parent.joinpath(*package.split(".")[1:])
    return [
        file.stem
        for file in sorted(folder.glob("[a-z]*.py"))
        if f"def {opener}(" in file.read_text(encoding="utf-8")
    ]


def _no_such_part(package: str, name: str, opener: str) -> str:
    """Say that there is no such part, and which there are."""
    there_are = ", ".join(known_parts(package, opener))
    return (
        f"there is no {package.rpartition('.')[2]} {name!r}; there are {there_are}, and a dotted "
        f"name is a module of your own with {opener}"
    )
