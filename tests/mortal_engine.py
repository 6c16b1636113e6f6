"""The simulated engine, which dies of one text, whatever else it is saying.

It is opened by name, as anybody's engine is: `engine.name=tests.mortal_engine`.
"""

from typing import Final

from orpheus_ws.config import EngineConfig
from orpheus_ws.engine import Engine, Prompt, simulated
from orpheus_ws.settings import read_options

DEADLY: Final = "Good night."


class MortalEngine(simulated.SimulatedEngine):
    """See above."""

    def _join(self, prompt: Prompt) -> simulated._Request:
        if prompt.text == DEADLY:
            self._stop("it was told to die")
        return super()._join(prompt)


async def open_engine(config: EngineConfig) -> Engine:
    """See `orpheus_ws.engine.open_engine`."""
    options = read_options(config.options, simulated.Options, "engine.options")
    return MortalEngine(config.capacity or 8, options)
