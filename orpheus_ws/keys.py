"""The keys of those who may connect: read from the configuration and from a file of their own.

Rule: of a key that stands here as `sha256:…` the secret is not known to anybody who reads this; a key is
compared by its hash alone, with all others, in constant time. A key's tenant is the name that it goes by
in logs, metrics and limits. Nothing here shows a secret, not even a `repr`.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from orpheus_ws.access_tokens import make_token, verify_token
from orpheus_ws.config import AuthConfig, Positive
from orpheus_ws.errors import StartupError
from orpheus_ws.settings import Section, read_toml

HASHED: Final = "sha256:"
ANONYMOUS: Final = "anonymous"
KEY_BYTES: Final = 32
"""Of a new key, at random. Nobody finds so many by trying, however fast the hash is: slow hashes such as
argon2 are for passwords, which people make up."""

_PROCESS_SECRET: Final = secrets.token_bytes(KEY_BYTES)
"""Signs what this process alone takes, whatever it knows of a key."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")


class TenantLimits(NamedTuple):
    """What all sockets of a tenant may do together. None: as much as they like."""

    sockets: int | None = None
    contexts: int | None = None
    text_per_minute: int | None = None


class Tenant(Section, frozen=True, kw_only=True):
    """A table of the key file. What is not there is as `auth` has it for everybody."""

    keys: tuple[Annotated[str, msgspec.Meta(min_length=1)], ...]
    sockets: Positive | None = None
    contexts: Positive | None = None
    text_per_minute: Positive | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """One key. `secret` is None where only the hash is known; such a key signs no tokens."""

    tenant: str
    digest: bytes = field(repr=False)
    secret: str | None = field(repr=False, compare=False)


class KeyRing:
    """All keys there are. `required`: nobody gets in without one."""

    def __init__(
        self,
        keys: Iterable[Key],
        *,
        required: bool,
        default: TenantLimits,
        limits: Mapping[str, TenantLimits],
    ) -> None:
        self.required = required
        self._keys = tuple(keys)
        self._known = frozenset(self._keys)
        self._default = default
        self._limits = limits
        # A name that has several secrets is in several of them.
        self._signing: list[dict[str, str]] = []
        self._signers: dict[tuple[str, str], Key] = {}
        for key in self._keys:
            self._may_sign(key, *_signs_here(key))
            if key.secret:
                self._may_sign(key, key.tenant, key.secret)

    def _may_sign(self, key: Key, name: str, secret: str) -> None:
        free = next((signs for signs in self._signing if name not in signs), None)
        if free is None:
            self._signing.append(free := {})
        free[name] = secret
        self._signers[name, secret] = key

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: Key) -> bool:
        """Whether somebody with this key would still be let in."""
        return not self.required or key in self._known

    @property
    def tenants(self) -> tuple[str, ...]:
        """Names of those who have a key, each once; without keys, of the one that everybody is."""
        named = (key.tenant for key in self._keys)
        return tuple(dict.fromkeys(named)) if self.required else (ANONYMOUS,)

    def find(self, presented: str) -> Key | None:
        """The key that this is."""
        # All are compared, so that time tells nothing about which one nearly matched.
        digest = _digest(presented)
        found = None
        for key in self._keys:
            if hmac.compare_digest(digest, key.digest):
                found = key
        return found

    def signer(self, token: str, now: float) -> Key | None:
        """The key that made a token, if the token is valid at the Unix time `now`."""
        for signs in self._signing:
            name = verify_token(signs, token, now)
            if name is not None:
                return self._signers[name, signs[name]]
        return None

    def token(self, key: Key, expires: int) -> str:
        """A token that this process alone takes, for a key of which the hash may be all that is known."""
        name, secret = _signs_here(key)
        return make_token(name, secret, expires=expires)

    def secrets_of(self, tenant: str) -> list[str]:
        """Those of its keys that can sign."""
        return [key.secret for key in self._keys if key.tenant == tenant and key.secret]

    def limits(self, tenant: str) -> TenantLimits:
        """What it may do."""
        return self._limits.get(tenant, self._default)


def read_keys(auth: AuthConfig) -> KeyRing:
    """The keys of the configuration and those of its file. Blocks.

    Raises `StartupError` in one line without a secret.
    """
    default = TenantLimits(auth.sockets, auth.contexts, auth.text_per_minute)
    keys = [_key(name, text, f"auth.keys.{name}") for name, text in auth.keys.items() if text]
    limits = {}
    for name, tenant in _tenants(auth.file).items() if auth.file else ():
        keys += [_key(name, text, f"{auth.file}: a key of [{name}]") for text in tenant.keys]
        limits[name] = TenantLimits(
            tenant.sockets or default.sockets,
            tenant.contexts or default.contexts,
            tenant.text_per_minute or default.text_per_minute,
        )
    required = bool(auth.keys or auth.file)
    return KeyRing(keys, required=required, default=default, limits=limits)


def new_key() -> tuple[str, str]:
    """A fresh key, and what stands for it where it can be read."""
    secret = secrets.token_urlsafe(KEY_BYTES)
    return secret, f"{HASHED}{_digest(secret).hex()}"


def _key(tenant: str, text: str, where: str) -> Key:
    if not text.startswith(HASHED):
        return Key(tenant, _digest(text), text)
    hexadecimal = text.removeprefix(HASHED).lower()
    if not _DIGEST.match(hexadecimal):
        raise StartupError(
            f"{where} begins with {HASHED} but has no 64 hexadecimal digits after it; take the line "
            "that `orpheus-ws key new` prints"
        )
    return Key(tenant, bytes.fromhex(hexadecimal), None)


def _signs_here(key: Key) -> tuple[str, str]:
    """What stands for the key in a token of this process, and its secret there.

    The hash itself would tell a key that somebody made up to whoever reads the token and guesses.
    """
    tag = hmac.digest(_PROCESS_SECRET, key.digest, "sha256").hex()
    return tag[:32], tag[32:]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _tenants(file: str) -> dict[str, Tenant]:
    tables = read_toml(Path(file))
    if not tables:
        # What a writer has emptied to fill it again is no order to shut everybody out.
        raise StartupError(f"{file} has no keys; write [NAME] and `keys = [...]` below it")
    tenants = {name: _tenant(file, name, table) for name, table in tables.items()}
    owners: dict[str, str] = {}
    for name, tenant in tenants.items():
        for text in tenant.keys:
            owner = owners.setdefault(text, name)
            if owner != name:
                raise StartupError(f"{file}: [{owner}] and [{name}] have the same key")
    return tenants


def _tenant(file: str, name: str, table: Any) -> Tenant:
    try:
        return msgspec.convert(table, Tenant)
    except msgspec.ValidationError as error:
        # Its text is not passed on: it can contain a key.
        raise StartupError(
            f"{file}: [{name}] must have `keys`, a list of texts, and may have {_LIMIT_NAMES}, whole "
            "numbers of at least 1, and nothing else"
        ) from error


_LIMIT_NAMES: Final = ", ".join(TenantLimits._fields)
