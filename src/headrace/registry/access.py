"""Who may ask what of the registry: names and passwords, or tokens; rights per subject."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from headrace.config import ConfigError
from headrace.registry.errors import RegistryRefusalError

ANY_SUBJECT = "*"
_SCRYPT = "scrypt:"
_SCRYPT_COST = (1 << 14, 8, 1)
_REMEMBERED_MAX = 1_000


class SubjectRight(IntEnum):
    """What a user may do with a subject; each right has those before it."""

    READ = 1
    """Look: its versions, its schemas, whether another schema would go with it."""
    WRITE = 2
    """Register, and delete softly."""
    ADMIN = 3
    """Delete for good; set its level and its mode."""


@dataclass(frozen=True, slots=True)
class User:
    """Who asks, and what they may."""

    name: str
    rights: tuple[tuple[SubjectRight, str], ...] = ((SubjectRight.ADMIN, ANY_SUBJECT),)

    def may(self, right: SubjectRight, subject: str) -> bool:
        return any(given >= right and _covers(pattern, subject) for given, pattern in self.rights)

    def check(self, right: SubjectRight, subject: str) -> None:
        if not self.may(right, subject):
            where = "the registry as a whole" if subject == ANY_SUBJECT else f"subject {subject}"
            raise RegistryRefusalError(40301, f"User {self.name} has no right to {right.name.lower()} {where}")


EVERYONE = User("anonymous")


@dataclass(slots=True)
class RegistryAccess:
    """Finds out who asks. Without a method of authentication everybody may do everything."""

    method: str = "NONE"
    secrets: Mapping[str, str] = field(default_factory=dict)
    rights: Mapping[str, tuple[tuple[SubjectRight, str], ...]] | None = None
    _verified: set[bytes] = field(default_factory=set)

    @classmethod
    def of(cls, method: str, users: str | None, rights: str | None) -> RegistryAccess:
        """Read the files that the settings name."""
        if method == "NONE":
            if rights is not None:
                raise ConfigError({"authorization.rights": "rights need users: set authentication.method"})
            return cls()
        if users is None:
            raise ConfigError({"authentication.users": f"authentication.method={method} needs a file of users"})
        secrets = dict(_pairs(users, "authentication.users"))
        given = None if rights is None else _rights(rights)
        return cls(method, secrets, given)

    def user(self, authorization: str | None) -> User:
        """Who a header `Authorization` speaks for; a refusal if it speaks for nobody."""
        if self.method == "NONE":
            return EVERYONE
        scheme, _, secret = (authorization or "").partition(" ")
        if scheme.lower() == "basic" and self.method == "BASIC":
            name = self._by_password(secret.strip())
        elif scheme.lower() == "bearer" and self.method == "BEARER":
            name = self._by_token(secret.strip())
        else:
            name = None
        if name is None:
            raise RegistryRefusalError(401, f"Unauthorized: this registry wants {self.method.lower()} credentials")
        if self.rights is None:
            return User(name)
        return User(name, (*self.rights.get(name, ()), *self.rights.get(ANY_SUBJECT, ())))

    @property
    def challenge(self) -> str:
        return f'{self.method.capitalize()} realm="schema registry"'

    def _by_password(self, encoded: str) -> str | None:
        try:
            name, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        expected = self.secrets.get(name)
        if not colon or expected is None:
            return None
        # To make a password's hash takes milliseconds, and clients show it with every request.
        seen = hashlib.sha256(f"{expected}\0{encoded}".encode()).digest()
        if seen in self._verified:
            return name
        if not matches(password, expected):
            return None
        if len(self._verified) >= _REMEMBERED_MAX:
            self._verified.clear()
        self._verified.add(seen)
        return name

    def _by_token(self, token: str) -> str | None:
        found = None
        for name, expected in self.secrets.items():
            # All are compared, so that the time does not say which came near.
            if hmac.compare_digest(token.encode(), expected.encode()):
                found = name
        return found


def hashed(password: str, salt: bytes) -> str:
    """A password as the file of users keeps it, when it is not to be read there."""
    cost, block, parallel = _SCRYPT_COST
    digest = hashlib.scrypt(password.encode(), salt=salt, n=cost, r=block, p=parallel)
    return f"{_SCRYPT}{salt.hex()}:{digest.hex()}"


def matches(password: str, expected: str) -> bool:
    """Whether a password is the one that the file of users has."""
    if expected.startswith(_SCRYPT):
        try:
            salt = bytes.fromhex(expected.removeprefix(_SCRYPT).partition(":")[0])
        except ValueError:
            return False
        password = hashed(password, salt)
    return hmac.compare_digest(password.encode(), expected.encode())


def _covers(pattern: str, subject: str) -> bool:
    if pattern.endswith("*"):
        return subject.startswith(pattern[:-1])
    return pattern == subject


def _pairs(location: str, setting: str) -> Iterable[tuple[str, str]]:
    for number, line in _lines(location, setting):
        name, colon, secret = line.partition(":")
        if not colon or not name.strip() or not secret.strip():
            raise ConfigError({setting: f"{location}:{number}: a line is `name: secret`"})
        yield name.strip(), secret.strip()


def _rights(location: str) -> dict[str, tuple[tuple[SubjectRight, str], ...]]:
    setting = "authorization.rights"
    found: dict[str, tuple[tuple[SubjectRight, str], ...]] = {}
    for number, line in _lines(location, setting):
        words = line.split()
        if len(words) != 3 or words[1].upper() not in SubjectRight.__members__:
            raise ConfigError({setting: f"{location}:{number}: a line is `user read|write|admin subject`"})
        found[words[0]] = (*found.get(words[0], ()), (SubjectRight[words[1].upper()], words[2]))
    return found


def _lines(location: str, setting: str) -> Iterable[tuple[int, str]]:
    try:
        text = Path(location).expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError({setting: f"{setting}={location} cannot be read: {error}"}) from error
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, line
