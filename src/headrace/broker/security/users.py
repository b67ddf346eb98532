"""Who can log in: users with a password in the configuration (PLAIN), and those in the metadata (SCRAM, tokens)."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from headrace.net.sasl.serving import PasswordCheck, Proof, ScramKeys, ScramLookup

if TYPE_CHECKING:
    from headrace.cluster.image import Image

#: Kafka's numbers of the mechanisms, in the metadata and in requests.
SCRAM_NUMBERS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}


def password_check(passwords: Mapping[str, str]) -> PasswordCheck:
    """Whether a password is a user's. It takes as long for a user that there is not, and for any wrong password."""
    key = secrets.token_bytes(32)

    def digest(password: str) -> bytes:
        return hmac.digest(key, password.encode(errors="surrogatepass"), hashlib.sha256)

    known = {name: digest(password) for name, password in passwords.items()}
    nobody = secrets.token_bytes(32)

    def is_password(name: str, password: str) -> bool:
        expected = known.get(name)
        is_right = hmac.compare_digest(nobody if expected is None else expected, digest(password))
        return is_right and expected is not None

    return is_password


# Keys and owner of a delegation token, by its id, for a mechanism.
TokenLookup = Callable[[str, str], "tuple[ScramKeys, Proof] | None"]


def scram_lookup(mechanism: str, image: Callable[[], Image], token: TokenLookup) -> ScramLookup:
    """Users by what the metadata says at that moment."""
    number = SCRAM_NUMBERS[mechanism]

    def look_up(name: str, is_token: bool) -> tuple[ScramKeys, Proof] | None:
        if is_token:
            return token(mechanism, name)
        found = image().scram.get((name, number))
        if found is None:
            return None
        keys = ScramKeys(bytes(found.salt), bytes(found.stored_key), bytes(found.server_key), found.iterations)
        return keys, Proof(name)

    return look_up
