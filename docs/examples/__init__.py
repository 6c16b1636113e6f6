"""Programs to begin with; each is run by the tests. How they end is here, and yours needs none of it.

Rule: what goes wrong is one line on standard error and an exit code, the same as of `orpheus-ws`.
"""

import sys
from collections.abc import Callable
from typing import NoReturn

from orpheus_ws.cli.exits import Exit
from orpheus_ws.errors import OrpheusError


def run(name: str, main: Callable[..., None], arguments: str) -> NoReturn:
    """Run `main` with what is on the command line, where `arguments` may stand, and exit."""
    usage = f"usage: python -m docs.examples.{name} {arguments}"
    given, known = sys.argv[1:], arguments.split()
    needed = sum(not each.startswith("[") for each in known)
    if given and given[0] in ("-h", "--help"):
        print(usage)
        sys.exit(Exit.DONE)
    if not needed <= len(given) <= len(known) or any(each.startswith("-") for each in given):
        _end(Exit.USAGE, usage)
    try:
        main(*given)
    except KeyboardInterrupt:
        _end(Exit.INTERRUPTED, f"{name}: interrupted")
    except OSError as error:
        _end(Exit.FAILED, f"{name}: {error.filename or ''}: {error.strerror}".replace(": :", ":"))
    except OrpheusError as error:
        _end(Exit.FAILED, f"{name}: {error}")
    except ExceptionGroup as errors:
        # Of what was done at once; one of them is enough to be told.
        _end(Exit.FAILED, f"{name}: {errors.exceptions[0]}")
    sys.exit(Exit.DONE)


def _end(code: Exit, line: str) -> NoReturn:
    print(line, file=sys.stderr)
    sys.exit(code)
