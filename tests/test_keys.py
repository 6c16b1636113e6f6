"""Keys as they stand in files: hashed and plain, several of a name, and everything that is wrong there."""

import hashlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orpheus_ws.access_tokens import make_token, verify_token
from orpheus_ws.config import AuthConfig, load
from orpheus_ws.errors import StartupError
from orpheus_ws.keys import ANONYMOUS, Key, KeyRing, TenantLimits, new_key, read_keys
from tests.test_cli import run

MARK = "s3cret-that-nobody-sees"


def hashed(secret: str) -> str:
    """As another program would hash it."""
    return "sha256:" + hashlib.sha256(secret.encode()).hexdigest()


def in_file(file: Path, text: str, **settings: object) -> KeyRing:
    """The keys of a file with this text."""
    file.write_text(text)
    return read_keys(AuthConfig(file=str(file), **settings))  # type: ignore[arg-type]


def owner(keys: KeyRing, presented: str) -> str | None:
    """Whose key it is."""
    key = keys.find(presented)
    return None if key is None else key.tenant


@given(st.text(min_size=1, max_size=40))
def test_a_hash_stands_for_its_key(secret: str) -> None:
    """A key is let in by its hash as by itself; the hash, and its text, are no key."""
    keys = read_keys(AuthConfig(keys={"a": hashed(secret)}))
    assert owner(keys, secret) == "a"
    assert owner(keys, hashed(secret)) is None
    assert owner(keys, hashed(secret).removeprefix("sha256:")) is None
    assert owner(keys, secret + "x") is None


def test_a_hash_signs_nothing() -> None:
    """Whoever reads the hash can make no token, and neither can the key of which only a hash is known."""
    keys = read_keys(AuthConfig(keys={"a": hashed(MARK)}))
    for secret in (MARK, hashed(MARK), hashed(MARK).removeprefix("sha256:")):
        assert keys.signer(make_token("a", secret, expires=2_000_000_000), 0.0) is None
    assert keys.secrets_of("a") == []


def test_several_keys_of_a_name(tmp_path: Path) -> None:
    """Any of them lets in under the name, any that is not hashed signs, and those of `auth.keys` count."""
    text = f'[mobile]\nkeys = ["{hashed("one")}", "two", "three"]\n[web]\nkeys = ["four"]\n'
    keys = in_file(tmp_path / "keys.toml", text, keys={"mobile": "five", "other": "six"})
    assert [owner(keys, key) for key in ("one", "two", "three", "four", "five", "six", "seven")] == [
        "mobile", "mobile", "mobile", "web", "mobile", "other", None,
    ]  # fmt: skip
    assert set(keys.tenants) == {"mobile", "web", "other"}
    assert len(keys) == 6
    for secret, known in (("one", False), ("two", True), ("three", True), ("five", True)):
        token = make_token("mobile", secret, expires=100)
        signer = keys.signer(token, 99.0)
        assert (signer is not None) is known
        assert signer is None or signer.tenant == "mobile"


def test_limits(tmp_path: Path) -> None:
    """A name has the limits of its table, and where it has none those of everybody."""
    text = '[a]\nkeys = ["x"]\nsockets = 5\n[b]\nkeys = ["y"]\n'
    keys = in_file(tmp_path / "keys.toml", text, sockets=2, contexts=3)
    assert keys.limits("a") == TenantLimits(5, 3, None)
    assert keys.limits("b") == keys.limits("of nobody") == TenantLimits(2, 3, None)


def test_a_name_without_keys(tmp_path: Path) -> None:
    """Shuts it out; that nobody at all has a key lets nobody in."""
    keys = in_file(tmp_path / "keys.toml", "[a]\nkeys = []\n")
    assert keys.required
    assert (len(keys), keys.find(""), keys.find("a")) == (0, None, None)


def test_without_keys() -> None:
    """Everybody has one name."""
    keys = read_keys(AuthConfig())
    assert not keys.required
    assert keys.tenants == (ANONYMOUS,)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "has no keys"),
        ("# nothing\n", "has no keys"),
        ("[a]\n", "[a] must have `keys`"),
        (f'[a]\nkeys = "{MARK}"\n', "[a] must have `keys`, a list"),
        (f'[a]\nkeys = ["{MARK}", ""]\n', "[a] must have `keys`, a list"),
        (f'[a]\nkeys = ["{MARK}"]\nsokets = 3\n', "may have sockets, contexts, text_per_minute"),
        (f'[a]\nkeys = ["{MARK}"]\nsockets = 0\n', "whole numbers of at least 1"),
        (f'a = "{MARK}"\n', "[a] must have"),
        (f'[a]\nkeys = ["sha256:{MARK}"]\n', "64 hexadecimal digits"),
        (f'[a]\nkeys = ["sha256:{"0" * 63}"]\n', "64 hexadecimal digits"),
        (f'[a]\nkeys = ["{MARK}"]\n[b]\nkeys = ["{MARK}"]\n', "[a] and [b] have the same key"),
        (f'[a]\nkeys = ["{MARK}\n', "not valid TOML"),
        (f'[a]\nkeys = ["{MARK}"]\n[a]\n', "not valid TOML"),
        (f"{MARK}", "not valid TOML"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, expected: str) -> None:
    """Each is one line that names the file and what to do, and no key."""
    file = tmp_path / "keys.toml"
    with pytest.raises(StartupError) as caught:
        in_file(file, text)
    assert expected in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert MARK not in str(caught.value)


def test_no_file() -> None:
    """That there is none is said, and lets nobody in."""
    with pytest.raises(StartupError, match="cannot read"):
        read_keys(AuthConfig(file="/nowhere/keys.toml"))


def test_a_hash_in_the_configuration_that_is_none() -> None:
    """It is said with the name, and does not become a key of its own."""
    with pytest.raises(StartupError, match=r"auth\.keys\.a begins with sha256:"):
        read_keys(AuthConfig(keys={"a": "sha256:abc"}))


def test_nothing_shows_a_key() -> None:
    """Neither the configuration nor a key shows a secret when it is printed."""
    config = load(flags=[f"auth.keys.a={MARK}"])
    (key,) = [Key("a", MARK.encode(), MARK)]
    assert MARK not in f"{config} {config!r} {config.auth!r} {key} {key!r}"


# The command --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mobile", "a.b c", 'quo"ted', "käse\\"])
def test_a_new_key(tmp_path: Path, name: str) -> None:
    """What is printed for the file lets in the key that is printed, and does not contain it."""
    made = run("key", "new", "--", name)
    assert made.returncode == 0
    secret = made.stdout.strip()
    assert re.fullmatch(r"[\w-]{43}", secret)
    assert secret not in made.stderr
    lines = [line for line in made.stderr.splitlines() if line.startswith(("[", "keys"))]
    assert list(tomllib.loads("\n".join(lines))) == [name]
    assert owner(in_file(tmp_path / "keys.toml", "\n".join(lines)), secret) == name


def test_new_keys_differ() -> None:
    """No two are alike, and each has 256 bits."""
    made = {new_key()[0] for _ in range(100)}
    assert len(made) == 100
    assert {len(secret) for secret in made} == {43}


def test_a_key_needs_a_name() -> None:
    """Without one nothing is made."""
    assert run("key", "new").returncode == 2
    assert run("key", "new", " ").returncode == 2


def test_a_token_of_a_hash(tmp_path: Path) -> None:
    """`token` says that a hash signs nothing, and takes the name's plain key where there is one."""
    file = tmp_path / "keys.toml"
    file.write_text(f'[web]\nkeys = ["{hashed("one")}"]\n')
    setting = ("--set", f"auth.file={file}")
    refused = run("token", "web", *setting)
    assert refused.returncode == 1
    assert "sign nothing" in refused.stderr
    file.write_text(f'[web]\nkeys = ["{hashed("one")}", "two"]\n')
    made = run("token", "web", *setting)
    assert read_keys(AuthConfig(file=str(file))).signer(made.stdout.strip(), 0.0) is not None


def test_keys_need_no_server() -> None:
    """`key new` imports nothing that only a server has."""
    program = (
        "import orpheus_ws.keys, sys\n"
        "print([n for n in sys.modules if n.split('.')[0] in ('torch','prometheus_client','uvicorn')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_token_costs_the_same_with_many_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand names are asked about a token no oftener than one, right or wrong."""
    keys = read_keys(AuthConfig(keys={f"name{number}": f"key{number}" for number in range(1000)}))
    verified = 0

    def verifying(signs: Mapping[str, str], token: str, now: float) -> str | None:
        nonlocal verified
        verified += 1
        return verify_token(signs, token, now)

    monkeypatch.setattr("orpheus_ws.keys.verify_token", verifying)
    key = keys.find("key700")
    assert key is not None
    for token in (keys.token(key, 100), make_token("name700", "key700", expires=100)):
        assert keys.signer(token, 99.0) == key
    assert keys.signer(make_token("name700", "key701", expires=100), 99.0) is None
    assert verified == 3
