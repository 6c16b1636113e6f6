"""The documentation says what the code does, and its examples run."""

import asyncio
import contextlib
import io
import json
import re
import time
import tomllib
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from msgspec import inspect
from websockets.asyncio.client import connect
from websockets.datastructures import Headers

from orpheus_ws import config, errors, session
from orpheus_ws import messages as m
from orpheus_ws.access_tokens import make_token, verify_token
from orpheus_ws.capacity import SOURCES
from orpheus_ws.cli.exits import Exit
from orpheus_ws.context import MAX_FLUSHES
from orpheus_ws.keys import read_keys
from orpheus_ws.pcm import ENCODINGS, SAMPLE_RATES
from orpheus_ws.server import admission, serving
from orpheus_ws.server.auth import identify
from orpheus_ws.server.websocket import CLOSE_SECONDS
from orpheus_ws.synthesis import STALL_SECONDS
from orpheus_ws.text import MAX_SEGMENT_SECONDS
from orpheus_ws.tokens import SAMPLE_RATE, SAMPLES_PER_FRAME, TAGS
from tests import harness
from tests.pages import CLIENTS, PROTOCOL, ROOT, names, table

OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
ENGINE = (ROOT / "docs" / "engine.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
MEASUREMENTS = (ROOT / "docs" / "measurements.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def kinds(union: object) -> dict[str, type[msgspec.Struct]]:
    """Message classes by type."""
    return {str(kind.__struct_config__.tag): kind for kind in get_args(union)}


def test_every_message_is_documented() -> None:
    """The tables name exactly the messages of both directions, with exactly their fields."""
    documented = {names(row[0])[0]: row[1] for row in table("type")}
    known = kinds(m.ClientMessage) | kinds(m.ServerMessage)
    assert set(documented) == set(known)
    for kind, cell in documented.items():
        # `handle` stands for the context in the JSON protocol's binary frames only.
        fields = set(known[kind].__struct_fields__) - ({"handle"} if kind == "audio" else set())
        if kind == "config":
            assert fields == set(m.Open.__struct_fields__) - {"context"}
        else:
            assert set(names(cell)) == fields


def test_limits_of_ready_are_documented() -> None:
    """The page lists every limit that `ready` announces."""
    row = next(row for row in table("type") if row[0] == "`ready`")
    assert set(m.Limits.__struct_fields__) <= set(names(row[2]))


def bounds(kind: inspect.Type) -> tuple[Any, Any]:
    """The numbers between which a field may be."""
    parts = kind.types if isinstance(kind, inspect.UnionType) else [kind]
    number = next(p for p in parts if isinstance(p, inspect.IntType | inspect.FloatType))
    return number.ge, number.le


@pytest.mark.parametrize("row", [row for row in table("field") if re.search(r"\d to \d", row[2])])
def test_ranges_and_defaults(row: list[str]) -> None:
    """Every range on the page is the schema's, and every default is the one that is used."""
    low, high = re.search(r"([\d.]+) to ([\d.]+)", row[2]).groups()  # type: ignore[union-attr]
    structs: dict[str, type[msgspec.Struct]] = {
        "sampling": m.Sampling,
        "segment": m.Segmentation,
        "flush": m.Flush,
        "ping": m.Ping,
        "cancel": m.Cancel,
    }
    for name in names(row[0]):
        section, _, field = name.rpartition(".")
        info = inspect.type_info(structs.get(section, m.Open))
        assert isinstance(info, inspect.StructType)
        kind = next(f.type for f in info.fields if f.name == field)
        if name == "context":
            assert isinstance(kind, inspect.StrType)
            assert (kind.min_length, kind.max_length) == (int(low), int(high))
            continue
        if section in ("flush", "ping"):
            assert "128 characters" in row[2]
            low, high = re.findall(r"\d+", row[2])[-2:]
        assert bounds(kind) == (float(low), float(high))
        if re.fullmatch(r"[\d.]+", row[1]):
            assert getattr(m.Settings(voice="x"), field) == float(row[1])


def test_error_codes() -> None:
    """The page lists exactly the codes that errors can carry on the wire."""

    def tree(kind: type[errors.OrpheusError]) -> set[str]:
        return {kind.code}.union(*map(tree, kind.__subclasses__()))

    documented = {names(row[0])[0] for row in table("code")}
    assert documented == tree(errors.PeerError) | tree(errors.ServiceError)


def test_close_codes_of_errors() -> None:
    """Every close code that an error brings with it is on the page with the error's code."""

    def tree(kind: type[errors.OrpheusError]) -> list[type[errors.OrpheusError]]:
        return [kind, *(below for child in kind.__subclasses__() for below in tree(child))]

    documented = {(int(row[0]), name) for row in table("close code") for name in names(row[1])}
    closing = [kind for kind in tree(errors.OrpheusError) if kind.close_code is not None]
    assert closing
    for kind in closing:
        assert (kind.close_code, kind.code) in documented


def test_formats() -> None:
    """The page has exactly the encodings and the rates that `ready` offers."""
    assert [names(row[0])[0] for row in table("encoding")] == list(ENCODINGS)
    (rates,) = re.findall(r"at any rate: ([\d, or\s]+) samples a second", PROTOCOL)
    assert tuple(map(int, re.findall(r"\d+", rates))) == SAMPLE_RATES


def test_numbers_in_the_text() -> None:
    """Numbers that the page mentions are those of the code."""
    limits = config.LimitsConfig()
    assert f"last {session.REMEMBERED_CONTEXTS} ids" in PROTOCOL
    assert f"{MAX_FLUSHES} unanswered flushes" in PROTOCOL
    assert f"without text for {limits.context_idle_seconds:g} s" in PROTOCOL
    assert f"pings every {config.ServerConfig().ping_seconds:g} s" in PROTOCOL
    assert f"read for {config.ServerConfig().write_seconds:g} s" in PROTOCOL
    assert " ".join(f"<{tag}>" for tag in TAGS) in PROTOCOL


def test_numbers_of_the_concepts() -> None:
    """What the page of concepts says of a segment, a frame and a lead is so."""
    text = " ".join((ROOT / "docs" / "concepts.md").read_text(encoding="utf-8").split())
    assert f"at most {MAX_SEGMENT_SECONDS:g} s of speech" in text
    milliseconds = 1000 * SAMPLES_PER_FRAME / SAMPLE_RATE
    assert f"is {SAMPLES_PER_FRAME} samples: {milliseconds:.0f} ms of sound" in text
    assert f"`lead_ms` ({m.Settings(voice='x').lead_ms} unless" in text


def test_exit_codes() -> None:
    """The operations page lists exactly the exit codes there are, by their names."""
    listed = [(int(row[0]), names(row[1])[0]) for row in table("code", OPERATIONS)]
    assert listed == [(code.value, code.name) for code in Exit]


def test_sources_of_the_capacity() -> None:
    """The operations page lists exactly the ways in which a capacity can be known."""
    assert [names(row[0])[0] for row in table("source", OPERATIONS)] == list(SOURCES)


def test_limits_and_times_of_operations() -> None:
    """The table of limits names real keys with their defaults, every limit there is among them."""
    listed = {names(row[0])[0]: float(row[1]) for row in table("key", OPERATIONS)}
    known = {
        f"{section}.{name}": value
        for section, values in msgspec.to_builtins(config.Config()).items()
        if section in ("limits", "server")
        for name, value in values.items()
    }
    assert listed == {key: known[key] for key in listed}
    assert set(listed) >= {key for key in known if key.startswith("limits.")}


def test_numbers_of_operations() -> None:
    """Numbers in the text of the operations page are those of the code."""
    defaults = config.ServerConfig()
    text = " ".join(OPERATIONS.split())
    assert f"`server.drain_seconds` ({defaults.drain_seconds:g} s)" in text
    assert f"`server.write_seconds` ({defaults.write_seconds:g} s)" in text
    assert serving.RESTART_SPREAD_SHARE == 0.25
    assert f"quarter of that time, at most {serving.RESTART_SPREAD_SECONDS:g} s" in text
    assert f"cut off after {CLOSE_SECONDS:g} s" in text
    assert admission.ABANDONED_PINGS == 3
    assert f"for {admission.ABANDONED_SECONDS:g} s (or three times `server.ping_seconds`" in text
    assert f"says nothing for {STALL_SECONDS:g} s" in text


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links(page: Path) -> None:
    """Links to files lead somewhere."""
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_to_headings(page: Path) -> None:
    """Links to a heading, of the same page or of another, lead to one."""
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)#([^)]+)\)", text):
        assert anchor in anchors(page.parent / target if target else page), anchor


def test_configurations_of_the_engine_page() -> None:
    """Its examples of configuration files are accepted."""
    files = re.findall(r"```toml\n# (\w+\.toml)\n(.*?)```", ENGINE, re.DOTALL)
    assert [name for name, _ in files] == ["listen.toml", "server.toml"]
    for _, content in files:
        loaded = msgspec.convert(tomllib.loads(content), config.Config)
        assert loaded.codec.weights == "/models/snac_24khz"


def examples(page: str) -> list[str]:
    """Python programs on a page."""
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


async def output_of(example: str, url: str) -> list[str]:
    """Run an example against a server; the lines it prints."""
    program = example.replace("ws://127.0.0.1:8765/v1/tts", url)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        await asyncio.to_thread(exec, program, {"__name__": "example"})
    return output.getvalue().splitlines()


@pytest.mark.parametrize("page", [README, QUICKSTART], ids=["README", "quickstart"])
async def test_the_first_example(page: str) -> None:
    """The client example that newcomers see first is short and speaks: it prints chunks and a result."""
    async with harness.server() as started:
        (example,) = examples(page)
        assert len([line for line in example.splitlines() if line.strip()]) <= 20
        lines = await output_of(example, started.address.url)
        assert re.fullmatch(r" +0\.00 s: \d+ bytes", lines[0])
        assert "reason='end'" in lines[-1]


async def test_the_client_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of the clients' page do what the page says."""
    monkeypatch.chdir(tmp_path)
    # The last two need frameworks: `tests/slow/test_plugins.py` runs them.
    turns, events, telephone, barge_in, script, tls, tokens, _, _ = examples(CLIENTS)
    async with harness.server() as started:
        lines = await output_of(turns, started.address.url)
        assert lines[0].startswith("voices: tara, ")
        assert len(lines) > 3
        lines = await output_of(events, started.address.url)
        assert lines[0] == "begins at sample 0 - Good morning."
        assert re.fullmatch(r"\d+ bytes", lines[1])
        assert sum(line.startswith("[('") for line in lines) == 2
        assert lines[-1].startswith("Done(")
        assert lines[-1].endswith(" []")
        lines = await output_of(telephone, started.address.url)
        assert all(re.fullmatch(r"\d+\.\d+ ms", line) for line in lines)
        lines = await output_of(barge_in, started.address.url)
        assert len(lines) == 2
        assert lines[0].startswith("heard: This ")
        assert lines[1].endswith("hear the end of it.")
        (line,) = await output_of(script, started.address.url)
        assert re.fullmatch(r"\d+ bytes", line)
        assert (tmp_path / "hello.wav").stat().st_size > 4 * 4096
        assert await output_of(tls, "") == []
        (line,) = await output_of(tokens, "")
        token = line.partition("?token=")[2]
        assert verify_token({"web": "secret"}, token, time.time()) == "web"


MEASURED = ("session", "queue_ms", "audio_ms", "ttfa_ms", "rtf")


def as_on_the_page(frame: str | bytes) -> object:
    """A frame without its samples and without what is different each time."""
    if isinstance(frame, bytes):
        return frame[:16].hex(" ")
    return {name: "" if name in MEASURED else x for name, x in json.loads(frame).items()}


async def test_the_session_of_the_protocol_page() -> None:
    """The session in JSON goes frame by frame as the page shows it."""
    (session_text,) = re.findall(r"```text\n(.*?)```", PROTOCOL, re.DOTALL)
    lines = session_text.replace("\n  ", "").splitlines()
    got: list[object] = []
    async with harness.server() as started, connect(started.address.url) as socket:
        for line in lines:
            if line.startswith("C "):
                await socket.send(line[2:])
        async for frame in socket:
            # One binary frame stands for all of them.
            if not (isinstance(frame, bytes) and isinstance(got[-1], str)):
                got.append(as_on_the_page(frame))
        assert socket.close_code == 1000
    shown = [line[2:] for line in lines if line.startswith("S ")]
    assert got == [as_on_the_page(x) if x.startswith("{") else x.split(",")[0] for x in shown]


def test_readme_commands() -> None:
    """The commands of the README are targets of the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make ([a-z0-9-]+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_readme_figures() -> None:
    """Every number of the README's table was measured: it is on the page of measurements."""
    (block,) = re.findall(r"^\| measured on .*\n(?:\|.*\n)+", README, re.MULTILINE)
    heading, _, *rows = block.splitlines()
    assert "30 November 2026" in heading
    assert len(rows) >= 4
    for row in rows:
        what, figures = row.strip("|").split(" | ")
        for number in re.findall(r"\d+(?:\.\d+)?", f"{figures} {what.replace('85 ms', '')}"):
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.]*\d)", MEASUREMENTS), number
        assert ("simulated" in what) == ("gateway" in what or "transport" in what)


def test_extras() -> None:
    """The quickstart has every extra but those that only this repository's own checks need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = [name for row in table("extra", QUICKSTART) for name in names(row[0])]
    known = set(project["optional-dependencies"]) - {"check", "dev", "slow"}
    assert sorted(listed) == sorted(known)


def test_the_first_configuration(tmp_path: Path) -> None:
    """The configuration example of the quickstart is accepted."""
    (example,) = re.findall(r"```toml\n(.*?)```", QUICKSTART, re.DOTALL)
    file = tmp_path / "server.toml"
    file.write_text(example, encoding="utf-8")
    loaded = config.load(file=file)
    assert loaded.auth.keys == {"alice": "secret"}
    assert loaded.engine.capacity == 8


def test_the_token_of_the_protocol_page() -> None:
    """The example of a token is the one that the code makes and accepts."""
    token = make_token("web", "secret", expires=2_000_000_000)
    assert f"    {token}\n" in PROTOCOL
    keys = read_keys(config.AuthConfig(keys={"web": "secret"}))
    key = identify(keys, Headers(), f"/v1/tts?token={token}", now=1_900_000_000)
    assert key is not None
    assert key.tenant == "web"


def test_warnings_are_documented() -> None:
    """Every warning code that the code can send is on the page."""
    sources = [(ROOT / "orpheus_ws" / name).read_text() for name in ("context.py", "session.py")]
    used = set(re.findall(r'(?:warn_once\(|code=|_CODE: Final = )"([a-z_]+)"', "".join(sources)))
    assert {"closed_context", "already_open", "context_idle", "unknown_tag"} <= used
    for code in used | {"segment_length", "segment_loop"}:
        assert f"`{code}`" in PROTOCOL
