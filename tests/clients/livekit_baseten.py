"""LiveKit's own Baseten plugin against a server of ours, as its users run it.

Rule: run by the Python of an environment that has `livekit-agents` and `livekit-plugins-baseten`. One
JSON object on standard output says how it went; `--output` has what was heard as 16-bit PCM at 24 kHz:

    python tests/clients/livekit_baseten.py ws://127.0.0.1:8765 orpheus turns
"""

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
from livekit.agents import APIConnectOptions, APIError
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT
from livekit.plugins import baseten

TEXT = "The quick brown fox jumps over the lazy dog. It was a bright cold day in April."
PATHS = {"orpheus": "/v1/baseten/websocket", "qwen3-tts": "/v1/audio/speech/stream"}
NO_RETRY = APIConnectOptions(max_retry=0, timeout=10)


async def speak(
    plugin: Any, heard: bytearray, text: str, *, interrupt: bool = False
) -> dict[str, Any]:
    """One turn, its text in pieces as a language model sends them; left at once with `interrupt`."""
    seconds, finals, requests, words = 0.0, 0, set(), []
    async with plugin.stream(conn_options=NO_RETRY) as stream:
        for position, word in enumerate(text.split()):
            stream.push_text(f" {word}" if position else word)
        stream.end_input()
        async for event in stream:
            heard += bytes(event.frame.data)
            seconds += event.frame.duration
            finals += event.is_final
            requests.add(event.request_id)
            timed = event.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, ())
            words += [(str(word).strip(), word.start_time) for word in timed]
            if interrupt:
                break
    return {
        "seconds": round(seconds, 3),
        "finals": finals,
        "requests": len(requests),
        "words": words,
    }


async def turns(plugin: Any, heard: bytearray, action: str) -> list[dict[str, Any]]:
    """The turns of an action."""
    match action:
        case "turns":
            return [await speak(plugin, heard, TEXT), await speak(plugin, heard, TEXT)]
        case "interrupt":
            long = " ".join([TEXT] * 10)
            left = await speak(plugin, heard, long, interrupt=True)
            return [left, await speak(plugin, heard, TEXT)]
        case _:
            return [await speak(plugin, heard, "")]


async def play(model: str, url: str, action: str, voice: str, heard: bytearray) -> dict[str, Any]:
    """Do what is asked; say how it went, with how many sockets and metrics of the plugin's own."""
    opened: list[None] = []
    metrics: list[Any] = []

    async def connected(*_: Any) -> None:
        opened.append(None)

    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(connected)
    async with aiohttp.ClientSession(trace_configs=[trace]) as session:
        plugin = baseten.TTS(
            model=model,
            api_key="none",
            model_endpoint=url + PATHS[model],
            voice=voice,
            word_timestamps=model == "qwen3-tts",
            http_session=session,
        )
        plugin.on("metrics_collected", metrics.append)
        try:
            spoken = await turns(plugin, heard, action)
        except APIError as error:
            return {"error": type(error).__name__, "status": getattr(error, "status_code", None)}
        finally:
            await plugin.aclose()
        return {"turns": spoken, "sockets": len(opened), "metrics": len(metrics)}


def main() -> None:
    """Read the arguments, play, report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("model", choices=PATHS)
    parser.add_argument("action", choices=("turns", "interrupt", "empty"))
    parser.add_argument("--voice", default="tara")
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    heard = bytearray()
    result = asyncio.run(play(chosen.model, chosen.url, chosen.action, chosen.voice, heard))
    if chosen.output:
        chosen.output.write_bytes(heard)
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
