"""`orpheus-ws serve --engine trtllm` as a process, whose worker is killed by the kernel, as it were.

Rule: nothing here is patched but what the stand-in does and how long is waited.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from websockets.exceptions import ConnectionClosed

from orpheus_ws import messages as m
from orpheus_ws.cli.exits import Exit
from orpheus_ws.engine import trtllm_watch
from tests.doctor_runs import command
from tests.harness import Peer, peer
from tests.voice import fake_trtllm
from tests.voice.trtllm_engines import LONG_TEXT

# Each starts processes, which take their time.
pytestmark = pytest.mark.slow

FREE_PORTS = ("--port", "0", "--metrics-port", "0")
LONGER = LONG_TEXT.replace(".", ",") * 3
PRELUDE = """
import torch
from types import SimpleNamespace
torch.cuda.is_available = lambda: True
torch.cuda.get_device_properties = lambda index: SimpleNamespace()
torch.cuda.mem_get_info = lambda: (40 * 2**30, 80 * 2**30)
from tensorrt_llm import behaviour
behaviour.waits_at_exit = True
behaviour.step_seconds = 0.01
from orpheus_ws.engine import trtllm_process, trtllm_watch
trtllm_process.close.__defaults__ = (0.1,)
"""


class Serving(NamedTuple):
    """The process, and where it listens."""

    process: subprocess.Popen[str]
    url: str

    def below(self) -> list[psutil.Process]:
        """The worker, and its helper if there is one."""
        return sorted(psutil.Process(self.process.pid).children(), key=lambda each: each.pid)


@contextmanager
def serving(folder: Path, prelude: str) -> Iterator[Serving]:
    """`serve` over the stand-in, with this done before. Killed at the end, if it still runs."""
    model = str(fake_trtllm.write_checkpoint(folder / "model"))
    chosen = ("--engine", "trtllm", "--model", model, "--uncalibrated", "3", *FREE_PORTS)
    simulated = ("--set", "codec.name=simulated")
    with subprocess.Popen(
        command("serve", *chosen, *simulated, prelude=PRELUDE + prelude),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(fake_trtllm.FOLDER), *sys.path])},
    ) as process:
        try:
            assert process.stdout is not None
            yield Serving(process, json.loads(process.stdout.readline())["url"])
        finally:
            process.kill()


async def until_closed(client: Peer) -> None:
    """Read on until the socket is closed: who does not read is not told."""
    with suppress(ConnectionClosed):
        while True:
            await client.receive()


@pytest.mark.parametrize("helper", [False, True])
async def test_a_worker_that_is_killed(tmp_path: Path, helper: bool) -> None:
    """Who listens is told, the process ends by itself, and nothing of TensorRT-LLM is left.

    With a helper that outlives the worker only silence tells.
    """
    prelude = f"behaviour.helper = {helper}\ntrtllm_watch.SILENCE_SECONDS = 3.0"
    with serving(tmp_path, prelude) as served:
        worker, *others = served.below()
        assert len(others) == helper
        async with peer(served.url) as client:
            await client.say("a", LONGER)
            await client.wait_for(m.Audio)
            worker.kill()
            last = (await client.utterance("a"))[-1]
            assert isinstance(last, m.Error)
            assert last.code == "engine_failed"
            await until_closed(client)
        assert served.process.wait(timeout=30) == Exit.DIED
        assert not psutil.wait_procs(others, timeout=30)[1]


@pytest.mark.parametrize(
    "call",
    [m.Cancel(context="a"), m.Text(context="b", text="Hi there. ")],
    ids=["abort", "request"],
)
async def test_an_event_loop_that_the_library_blocks(tmp_path: Path, call: m.ClientMessage) -> None:
    """If a call of the library never returns, the process ends as one whose engine died."""
    assert int(Exit.DIED) == trtllm_watch.DIED
    prelude = "behaviour.helper = True\ntrtllm_watch.STUCK_SECONDS = 4.0"
    with serving(tmp_path, prelude) as served:
        worker, helper = served.below()
        async with peer(served.url) as client:
            await client.say("a", LONGER)
            await client.wait_for(m.Audio)
            worker.kill()
            worker.wait()
            await client.send(call)
            await until_closed(client)
        assert served.process.wait(timeout=30) == Exit.DIED
        assert not psutil.wait_procs([helper], timeout=30)[1]


def test_a_start_that_fails_ends(tmp_path: Path) -> None:
    """A start that is refused after the load ends with its one line, and leaves no process."""
    model = str(fake_trtllm.write_checkpoint(tmp_path / "model"))
    prelude = f"""{PRELUDE}
behaviour.honours_penalty = False
behaviour.stuck = __import__("threading").Event()
"""
    done = subprocess.run(
        command(
            *("serve", "--engine", "trtllm", "--model", model, "--uncalibrated", "3"),
            *("--set", "codec.name=simulated", *FREE_PORTS),
            prelude=prelude,
        ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(fake_trtllm.FOLDER), *sys.path])},
    )
    assert done.returncode == Exit.FAILED
    said = done.stderr.splitlines()[-1]
    assert said.startswith("orpheus-ws: the sampler ignores repetition_penalty")
    assert done.stdout == ""
