"""Configuration: three sources in order, strict names, and errors that say what to change."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import inspect

from orpheus_ws.config import Config, load
from orpheus_ws.errors import StartupError

Write = Callable[[str | bytes], Path]


@pytest.fixture
def toml(tmp_path: Path) -> Write:
    """Writes a configuration file."""

    def write(content: str | bytes) -> Path:
        path = tmp_path / "orpheus.toml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def complaint(*flags: str, environment: dict[str, str] | None = None) -> str:
    """What `load` says when it refuses these settings."""
    with pytest.raises(StartupError) as caught:
        load(environment=environment, flags=flags)
    text = str(caught.value)
    assert "\n" not in text
    return text


# Defaults -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("limits.idle_seconds", 900),
        ("limits.context_idle_seconds", 30),
        ("server.ping_seconds", 20),
        ("server.write_seconds", 5),
        ("server.host", "127.0.0.1"),
        ("server.metrics_host", "127.0.0.1"),
        ("auth.keys", {}),
        ("auth.anonymous", False),
        ("auth.origins", ()),
        ("engine.name", "pocket"),
        ("engine.capacity", None),
        ("codec.slots", None),
        ("log.level", "info"),
    ],
)
def test_defaults(key: str, value: object) -> None:
    """The defaults are those of the protocol and design pages, and open nothing to a network."""
    section, _, field = key.partition(".")
    assert getattr(getattr(load(), section), field) == value


def test_a_client_may_use_what_the_limits_announce() -> None:
    """By default a message can hold the longest text, and a context as much as a socket may."""
    limits = load().limits
    assert limits.message_bytes > limits.text_chars
    assert limits.contexts >= 2


def test_configuration_is_frozen() -> None:
    """Nothing can be changed once it is loaded."""
    config = load()
    with pytest.raises(AttributeError):
        config.server.port = 1  # type: ignore[misc]
    assert load() == Config()


# Sources ------------------------------------------------------------------------------------------


def scalars() -> list[tuple[str, str, tuple[Any, Any, Any]]]:
    """Every key that takes one value, and three values for it."""
    samples: dict[type[inspect.Type], tuple[Any, Any, Any]] = {
        inspect.IntType: (1001, 1002, 1003),
        inspect.FloatType: (1.5, 2.5, 3.5),
        inspect.BoolType: (False, False, True),
        inspect.StrType: ("one", "two", "three"),
        inspect.VarTupleType: (("one", "two"), ("three",), ("four", "five", "six")),
    }
    found = []
    config = inspect.type_info(Config)
    assert isinstance(config, inspect.StructType)
    for section in config.fields:
        assert isinstance(section.type, inspect.StructType)
        for field in section.type.fields:
            kinds = field.type.types if isinstance(field.type, inspect.UnionType) else [field.type]
            if isinstance(kinds[0], inspect.LiteralType):
                first, second, *rest = map(str, kinds[0].values)
                found.append((section.name, field.name, (first, second, (*rest, first)[0])))
            elif type(kinds[0]) in samples:
                found.append((section.name, field.name, samples[type(kinds[0])]))
    return found


SCALARS = scalars()


def as_toml(value: object) -> str:
    """A value as TOML has it."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(as_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


def as_text(value: object) -> str:
    """A value as a flag or an environment variable has it."""
    return ",".join(value) if isinstance(value, tuple) else str(value).lower()


def test_all_sections_are_tried() -> None:
    """The next test covers every section but the one that holds only names of keys."""
    assert {section for section, _, _ in SCALARS} == set(Config.__struct_fields__)


@pytest.mark.parametrize(("section", "field", "samples"), SCALARS)
def test_flags_over_environment_over_file(
    section: str, field: str, samples: tuple[Any, Any, Any], toml: Write
) -> None:
    """Every key can be set in all three ways: flags win over the environment, that over the file."""
    in_file, in_environment, in_flags = samples
    file = toml(f"[{section}]\n{field} = {as_toml(in_file)}\n")
    environment = {f"ORPHEUS_WS_{section}__{field}".upper(): as_text(in_environment)}
    flags = [f"{section}.{field}={as_text(in_flags)}"]

    def loaded(**sources: Any) -> object:
        return getattr(getattr(load(**sources), section), field)

    assert loaded(file=file) == in_file
    assert loaded(environment=environment) == in_environment
    assert loaded(flags=flags) == in_flags
    assert loaded(file=file, environment=environment) == in_environment
    assert loaded(file=file, flags=flags) == in_flags
    assert loaded(file=file, environment=environment, flags=flags) == in_flags


def test_sources_are_merged_key_by_key(toml: Write) -> None:
    """A source replaces the keys it names, not the sections they are in."""
    config = load(
        file=toml('[server]\nport = 1\nhost = "a"\n[auth.keys]\nx = "1"\ny = "2"\n'),
        environment={"ORPHEUS_WS_SERVER__PORT": "2", "ORPHEUS_WS_AUTH__KEYS__Y": "3"},
        flags=["auth.keys.z=4"],
    )
    assert (config.server.host, config.server.port) == ("a", 2)
    assert config.auth.keys == {"x": "1", "y": "3", "z": "4"}


def test_the_last_flag_wins() -> None:
    """The same flag twice means the second."""
    assert load(flags=["server.port=1", "server.port=2"]).server.port == 2


def test_a_flag_may_contain_equal_signs() -> None:
    """Only the first equal sign separates, so keys in base64 can be given."""
    assert load(flags=["auth.keys.a=c2Vj=="]).auth.keys == {"a": "c2Vj=="}


def test_other_variables_are_not_ours() -> None:
    """Variables without the prefix change nothing, whatever they are called."""
    environment = {"SERVER__PORT": "1", "ORPHEUS_API_KEY": "x", "MY_ORPHEUS_WS_SERVER__PORT": "1"}
    assert load(environment=environment) == Config()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a,b", ("a", "b")), (" a , b ,", ("a", "b")), ("a", ("a",)), ("", ()), (" , ", ())],
)
def test_lists_from_text(text: str, expected: tuple[str, ...]) -> None:
    """A list is written with commas; spaces around its items and empty items do not count."""
    assert load(flags=[f"auth.origins={text}"]).auth.origins == expected
    assert load(environment={"ORPHEUS_WS_AUTH__ORIGINS": text}).auth.origins == expected


@pytest.mark.parametrize(
    ("flag", "key", "value"),
    [
        ("server.port=0", "port", 0),
        ("server.port=65535", "port", 65_535),
        ("server.drain_seconds=5", "drain_seconds", 5.0),
        ("server.drain_seconds=0.5", "drain_seconds", 0.5),
    ],
)
def test_numbers_from_text(flag: str, key: str, value: float) -> None:
    """Numbers may be written as text where text is all there is."""
    assert getattr(load(flags=[flag]).server, key) == value


@pytest.mark.parametrize(("text", "value"), [("true", True), ("1", True), ("false", False)])
def test_truth_from_text(text: str, *, value: bool) -> None:
    """True and false may be written as text or as 0 and 1."""
    assert load(flags=[f"auth.anonymous={text}"]).auth.anonymous is value


def test_options_are_passed_through(toml: Write) -> None:
    """What a part reads itself arrives as it was written, nested values included."""
    file = toml('[engine.options]\nmodel = "m"\nlayers = [1, 2]\nnested = {a = 1}\n')
    config = load(file=file, flags=["engine.options.speed=1.5", "engine.options.nested.b=2"])
    assert config.engine.options == {
        "model": "m",
        "layers": [1, 2],
        "nested": {"a": 1, "b": "2"},
        "speed": "1.5",
    }
    assert load().engine.options == {}


# Mistakes -----------------------------------------------------------------------------------------


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


def test_unknown_key_in_the_other_sources(toml: Write) -> None:
    """A misspelt name in the file or the environment is found too, and told in the words of that source."""
    told = complaint(environment={"ORPHEUS_WS_SERVER__PROT": "1"})
    assert told.endswith("ORPHEUS_WS_SERVER__PROT in the environment; the nearest is ORPHEUS_WS_SERVER__PORT")  # fmt: skip
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
