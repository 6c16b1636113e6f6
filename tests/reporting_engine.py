"""The simulated engine, which also says of itself what a real one knows and it does not.

It is opened by name, as anybody's engine is: `engine.name=tests.reporting_engine`.
"""

from orpheus_ws.config import EngineConfig
from orpheus_ws.engine import Engine, EngineStatistics, simulated
from orpheus_ws.settings import read_options


class Options(simulated.Options, frozen=True):
    """See `simulated.Options`."""

    paused: int = 0
    """How many requests it says have lost their place."""


class ReportingEngine(simulated.SimulatedEngine):
    """Figures of its size, and no more than that: nothing here is measured."""

    def __init__(self, capacity: int, options: Options) -> None:
        super().__init__(capacity, options)
        self._paused = options.paused

    def statistics(self) -> EngineStatistics:
        """See `Engine`."""
        known = super().statistics()
        return known._replace(
            kv_blocks=100 * self.capacity,
            kv_blocks_used=100 * known.active,
            scheduled=known.active,
            paused=self._paused,
            queued_inside=0,
            gpu_bytes=10_000_000_000,
            iteration_seconds=0.01,
            simulated=None,
        )


async def open_engine(config: EngineConfig) -> Engine:
    """See `orpheus_ws.engine`."""
    options = read_options(config.options, Options, "engine.options")
    return ReportingEngine(config.capacity or 8, options)
