"""Configuration: three sources in order, and what each value may look like."""

from typing import Any

import pytest
from msgspec import inspect

from orpheus_ws.config import Config, load
from tests.conftest import Write

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
