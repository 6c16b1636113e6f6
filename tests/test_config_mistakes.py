"""Configuration that is wrong: errors that name the key and say what to change."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orpheus_ws.config import Config, load
from orpheus_ws.errors import StartupError
from tests.conftest import Write


def complaint(*flags: str, environment: dict[str, str] | None = None) -> str:
    """What `load` says when it refuses these settings."""
    with pytest.raises(StartupError) as caught:
        load(environment=environment, flags=flags)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("flag", "wrong", "nearest"),
    [
        ("server.prot=1", "server.prot", "server.port"),
        ("server.pingseconds=1", "server.pingseconds", "server.ping_seconds"),
        ("sever.port=1", "sever", "server"),
        ("limits.idle=1", "limits.idle", "limits.idle_seconds"),
        ("auth.key.a=x", "auth.key", "auth.keys"),
        ("engine.names=x", "engine.names", "engine.name"),
        ("SERVER.PORT=1", "SERVER", "server"),
        ("port=1", "port", "server.port"),
        ("idle_seconds=1", "idle_seconds", "limits.idle_seconds"),
        ("server_port=1", "server_port", "server.port"),
    ],
)
def test_unknown_key(flag: str, wrong: str, nearest: str) -> None:
    """An unknown key is an error that names it and the nearest known one."""
    text = complaint(flag)
    assert repr(wrong) in text
    assert repr(nearest) in text


def test_one_underscore_is_told_from_two() -> None:
    """A variable whose parts have one underscore between them is told the right name."""
    wrong = "ORPHEUS_WS_SERVER_METRICS_PORT"
    with pytest.raises(StartupError) as caught:
        load(environment={wrong: "1"})
    assert str(caught.value) == (
        f"unknown configuration key {wrong} in the environment; the nearest is "
        "ORPHEUS_WS_SERVER__METRICS_PORT"
    )


@given(name=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="=")))
def test_any_unknown_name_is_told_in_one_line(name: str) -> None:
    """Whatever is in a name, in any source, the error is one printable line."""
    for environment, flags in (({f"ORPHEUS_WS_X{name}": "1"}, []), ({}, [f"x{name}=1"])):
        with pytest.raises(StartupError) as caught:
            load(environment=environment, flags=flags)
        assert str(caught.value).isprintable()


def test_unknown_key_in_the_other_sources(toml: Write) -> None:
    """A misspelt name in the file or the environment is found too, and told in the words of that source."""
    told = complaint(environment={"ORPHEUS_WS_SERVER__PROT": "1"})
    assert told.endswith(
        "ORPHEUS_WS_SERVER__PROT in the environment; the nearest is ORPHEUS_WS_SERVER__PORT"
    )
    for content, wrong, near in (
        ("[serve]\nport = 1\n", "'serve'", "'server'"),
        ("[server]\nprot = 1\n", "'server.prot'", "'server.port'"),
        ("port = 1\n", "'port'", "'server.port'"),
    ):
        file = toml(content)
        with pytest.raises(StartupError) as caught:
            # What comes after the file is right, and is not blamed.
            load(file=file, environment={"ORPHEUS_WS_SERVER__PORT": "1"}, flags=["server.port=1"])
        assert str(caught.value) == (
            f"unknown configuration key {wrong} in {file}; the nearest is {near}"
        )


@pytest.mark.parametrize("flag", ["=1", "server.=1", ".port=1", "..=1", "nonsense=1"])
def test_strange_keys(flag: str) -> None:
    """Empty and far-off names are unknown keys as well."""
    assert "unknown configuration key" in complaint(flag)


@pytest.mark.parametrize("flag", ["", "server.port", "server.port:1"])
def test_flag_without_a_value(flag: str) -> None:
    """A flag without an equal sign is refused with how to write one."""
    assert "section.key=value" in complaint(flag)


@pytest.mark.parametrize(
    ("flag", "key"),
    [
        ("server.port=x", "server.port"),
        ("server.port=", "server.port"),
        ("server.port=-1", "server.port"),
        ("server.port=65536", "server.port"),
        ("server.port=1.5", "server.port"),
        ("server.port.x=1", "server.port"),
        ("server=x", "server"),
        ("server.drain_seconds=0", "server.drain_seconds"),
        ("server.drain_seconds=nan", "server.drain_seconds"),
        ("limits.contexts=0", "limits.contexts"),
        ("limits.message_bytes=255", "limits.message_bytes"),
        ("engine.capacity=0", "engine.capacity"),
        ("auth.anonymous=maybe", "auth.anonymous"),
        ("auth.keys=x", "auth.keys"),
        ("auth.keys.a.b=x", "auth.keys"),
        ("engine.options=x", "engine.options"),
    ],
)
def test_wrong_value(flag: str, key: str) -> None:
    """A value of the wrong kind or out of bounds is refused; the error names the key."""
    assert f"`{key}" in complaint(flag)


@pytest.mark.parametrize(
    "key", ["limits.idle_seconds", "limits.session_seconds", "server.drain_seconds"]
)
def test_times_are_finite(key: str, toml: Write) -> None:
    """Infinity is refused: `ready` cannot announce it in JSON, and no deadline is made of it."""
    assert key in complaint(f"{key}=inf")
    section, _, field = key.partition(".")
    with pytest.raises(StartupError, match=field):
        load(file=toml(f"[{section}]\n{field} = inf\n"))


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("log.level=loud", "`log.level` must be one of `debug`, `error`, `info`, `warning`"),
        ("server.port=65536", "`server.port` must be a whole number from 0 to 65535"),
        ("engine.capacity=none", "`engine.capacity` must be a whole number of at least 1"),
        ("server.drain_seconds=0", "must be a number above 0, at most 31536000"),
        ("auth.anonymous=maybe", "`auth.anonymous` must be `true` or `false`"),
        ("auth.keys.a=", "`auth.keys` must be a table of names, each with text that is not empty"),
        ("limits=5", "`limits` must be a section"),
    ],
)
def test_wrong_values_are_told_what_is_right(flag: str, expected: str) -> None:
    """The error says what the key takes: its bounds, or all of its values."""
    assert expected in complaint(flag)


@pytest.mark.parametrize(
    "key",
    ["auth.keys", "auth.keys.a.b", "auth", "auth.anonymous", "log.level", "server.port", "server"],
)
def test_secrets_are_not_repeated(key: str) -> None:
    """The error about a misplaced secret does not contain it, whatever key it was given to."""
    assert "hunter2" not in complaint(f"{key}=hunter2")
    variable = f"ORPHEUS_WS_{key}".upper().replace(".", "__")
    assert "hunter2" not in complaint(environment={variable: "hunter2"})


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ("server.port = true", "server.port"),
        ("server.host = 5", "server.host"),
        ("server = [1]", "server"),
        ("server.port = 2020-01-01", "server.port"),
        ("auth.origins = [1]", "auth.origins"),
        ("auth.keys = {a = 1}", "auth.keys"),
    ],
)
def test_wrong_value_in_the_file(content: str, key: str, toml: Write) -> None:
    """TOML's own kinds are checked against the key's."""
    with pytest.raises(StartupError, match=f"`{key}"):
        load(file=toml(content))


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there, or is no file, is named."""
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(StartupError) as caught:
            load(file=path)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        "a = ",
        "[server",
        b"\xff\xfe",
        "port = 1\nport = 2\n",
        "a = " + "[" * 3000,
        "a = " + "1" * 5000,
    ],
    ids=["value", "table", "bytes", "twice", "deep", "long"],
)
def test_bad_toml(content: str | bytes, toml: Write) -> None:
    """A file that is no TOML is named, in one line."""
    path = toml(content)
    with pytest.raises(StartupError) as caught:
        load(file=path)
    assert f"{path} is not valid TOML" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_service_links_are_not_ours() -> None:
    """What Kubernetes sets for a Service called orpheus-ws is no configuration; mistakes still are."""
    links = {
        "ORPHEUS_WS_PORT": "tcp://10.0.0.1:8765",
        "ORPHEUS_WS_PORT_8765_TCP_ADDR": "10.0.0.1",
        "ORPHEUS_WS_SERVICE_HOST": "10.0.0.1",
        "ORPHEUS_WS_SERVICE_PORT_METRICS": "9464",
    }
    assert load(environment=links) == Config()
    assert "ORPHEUS_WS_SERVER__PORT" in complaint(environment={"ORPHEUS_WS_SERVER_PORT": "1"})


def test_lists_are_written_with_commas() -> None:
    """A list in brackets, which would be one odd value, is refused with how to write it."""
    assert "commas" in complaint('auth.origins=["https://a.example"]')
