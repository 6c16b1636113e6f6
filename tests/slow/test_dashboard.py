"""A real Prometheus scrapes real servers: every panel has something to show, every alert fires."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orpheus_ws.config import load
from orpheus_ws.server import Server
from tests import promql, stuck_codec
from tests.harness import server
from tests.ills import HEALTHY, ILLS, TIMED, converse
from tests.manifests import measured
from tests.ports import free_port
from tests.prometheus import Prometheus, prometheus
from tests.test_cli import serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

INTERVAL = "10s"
"""What Grafana would say for a range: several scrapes."""
RESTARTING = "orpheus-restarting"
STARTS = 3
CAPACITY = 8
PATIENCE_SECONDS = 240


@contextlib.asynccontextmanager
async def driven(name: str, folder: Path, *settings: str) -> AsyncIterator[Server]:
    """A server that is ill, and clients that feel it."""
    ill = ILLS[name]
    files = await asyncio.to_thread(ill.files, folder)
    async with server(*ill.settings, *files, *settings) as started:
        driving = asyncio.ensure_future(ill.drive(started))
        try:
            yield started
            assert not driving.done() or driving.result()
        finally:
            stuck_codec.RELEASE.set()
            driving.cancel()
            await asyncio.wait([driving])


async def answers(running: Prometheus, expression: str) -> bool:
    """Whether a query has a number to show."""
    found = await asyncio.to_thread(running.query, expression)
    return any(math.isfinite(value) for _, value in found)


async def test_every_panel_has_data(tmp_path: Path) -> None:
    """Behind a server that is spoken to, each query of each panel has a number."""
    with prometheus(tmp_path) as running:
        # One that shows an alert, for the panel of alerts.
        # And one that has a certificate.
        async with (
            server(*HEALTHY, "engine.options.paused=1") as started,
            driven("neglected", tmp_path) as certified,
        ):
            ports = [each.address.metrics_port for each in (started, certified)]
            running.scrape({"orpheus": ports})
            driving = asyncio.create_task(converse(started))
            missing = list(promql.panel_queries(INTERVAL))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while missing:
                        missing = [q for q in missing if not await answers(running, q.text)]
            driving.cancel()
            await asyncio.wait([driving])
    assert not missing
    assert driving.cancelled()


async def restart(running: Prometheus, port: int) -> None:
    """A server's process that is killed and started anew, and then not started any more."""
    begun: set[float] = set()
    while len(begun) < STARTS:
        with await asyncio.to_thread(_started, port) as stop:
            known = set(begun)
            while begun == known:
                query = f'process_start_time_seconds{{job="{RESTARTING}"}}'
                begun |= {value for _, value in await asyncio.to_thread(running.query, query)}
            await asyncio.to_thread(stop.close)


def _started(port: int) -> contextlib.ExitStack:
    """A server in a process of its own; leaving the stack kills it."""
    stack = contextlib.ExitStack()
    stack.enter_context(serving("--metrics-port", str(port)))
    return stack


@pytest.mark.alone  # a codec is saturated by the clock
async def test_every_alert_fires(tmp_path: Path) -> None:
    """Each fault raises the alerts that it should; every rule can be evaluated."""
    stuck_codec.RELEASE.clear()
    expected = {("OrpheusNoReplica", ""), ("OrpheusRestarting", RESTARTING)}
    expected |= {("OrpheusTargetMissing", RESTARTING)}
    expected |= {(alert, f"orpheus-{name}") for name, ill in ILLS.items() for alert in ill.alerts}
    assert {alert for alert, _ in expected} == set(promql.alerts())
    with prometheus(tmp_path) as running:
        while ("OrpheusNoReplica", "") not in await asyncio.to_thread(running.fired):
            pass
        async with contextlib.AsyncExitStack() as stack:
            targets = {RESTARTING: free_port()}
            healthy = load(flags=HEALTHY).engine
            manifest = await asyncio.to_thread(measured, tmp_path / "m.json", CAPACITY, healthy)
            for name in ILLS:
                # What was measured is what the healthy one serves; of the others nobody knows.
                known = (f"engine.manifest={manifest}",) if name == "none" else ()
                started = await stack.enter_async_context(driven(name, tmp_path, *known))
                targets[f"orpheus-{name}"] = started.address.metrics_port
            running.scrape(targets)
            restarting = asyncio.create_task(restart(running, targets[RESTARTING]))
            fired = set[tuple[str, str]]()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while not expected <= fired:
                        await asyncio.sleep(1)
                        fired = await asyncio.to_thread(running.fired)
            await restarting
            rules = await asyncio.to_thread(running.rules)
    assert expected - fired == set()
    assert {alert for alert, job in fired if job == "orpheus-none"} <= TIMED
    assert len(rules) == len(list(promql.rule_queries()))
    assert [rule["lastError"] for rule in rules if rule["health"] != "ok"] == []
