"""A real Prometheus scrapes a server that speaks."""

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.test_cli import run, serving

pytestmark = pytest.mark.slow

METRICS = {
    "orpheus_capacity": 64.0,
    "orpheus_sockets": 0.0,
    'orpheus_contexts_total{outcome="done", surface="native"}': 1.0,
    'orpheus_time_to_first_byte_seconds_count{surface="native"}': 1.0,
    'orpheus_time_to_first_audio_seconds_count{surface="native"}': 1.0,
    'orpheus_time_to_first_sentence_seconds_count{surface="native"}': 1.0,
    'orpheus_socket_closes_total{code="1000"}': 1.0,
    'histogram_quantile(1, orpheus_time_to_first_byte_seconds_bucket{surface="native"}) > bool 0': 1.0,
    "orpheus_audio_seconds_total > bool 0": 1.0,
    "orpheus_engine_tokens > bool 0": 1.0,
    "orpheus_codec_step_seconds_count > bool 0": 1.0,
}


def query(port: int, expression: str, **when: float) -> float | None:
    """The value of an expression that has one, or None while it has none; `time` is when, or now."""
    asked = urllib.parse.urlencode({"query": expression, **when})
    address = f"http://127.0.0.1:{port}/api/v1/query?{asked}"
    try:
        with urllib.request.urlopen(address, timeout=10) as response:
            result = json.load(response)["data"]["result"]
    except OSError:
        return None
    return float(result[0]["value"][1]) if result else None


def _closed(metrics: str) -> bool:
    with urllib.request.urlopen(metrics, timeout=10) as response:
        return b'\norpheus_socket_closes_total{code="1000"} 1.0\n' in response.read()


def test_prometheus_reads_what_happened(tmp_path: Path) -> None:
    """After one utterance Prometheus answers queries with exactly what was spoken."""
    prometheus = shutil.which("prometheus")
    assert prometheus is not None, "install Debian's package prometheus"
    port = free_port()
    with serving() as (_, announced):
        file = str(tmp_path / "hello.wav")
        assert run("say", "--url", announced["url"], "-o", file, "Hello there.").returncode == 0
        # What the client was told the server may come to count a little later.
        while not _closed(announced["metrics"]):
            pass
        target = urllib.parse.urlsplit(announced["metrics"]).netloc
        config = {
            "global": {"scrape_interval": "1s"},
            "scrape_configs": [{"job_name": "tts", "static_configs": [{"targets": [target]}]}],
        }
        (tmp_path / "prometheus.yml").write_text(json.dumps(config))
        with subprocess.Popen(
            [
                prometheus,
                f"--config.file={tmp_path / 'prometheus.yml'}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                while (scraped := query(port, "timestamp(up) and up == 1")) is None:
                    assert process.poll() is None
                # Of that scrape: a later one may not be answered in its second, and then nothing has a value.
                found = {each: query(port, each, time=scraped) for each in METRICS}
            finally:
                process.terminate()
    assert found == METRICS
