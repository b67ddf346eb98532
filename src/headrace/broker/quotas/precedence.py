"""Which of the quotas that are set counts for a client, and with whom it is shared (KIP-13, KIP-55).

The most specific one counts: of a user's client id before that of any client id of the user, then of the user alone;
the same of users who have none by name; last of a client id whoever uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from headrace.cluster.authorizer import java_host
from headrace.cluster.image import QuotaEntity
from headrace.cluster.quotas import CLIENT_ID, IP, USER

#: In place of a name: whoever has no quota by its own.
DEFAULT: Final = None
_ABSENT: Final = ""


class ClientBound(NamedTuple):
    """A quota that counts for a client, which it shares with all clients of the same user and client id here."""

    value: float
    user: str
    client_id: str


class QuotaTable:
    """The quotas of one kind (`producer_byte_rate` …), by user and client id; `""` where an entity has no such part."""

    def __init__(self, quotas: Mapping[QuotaEntity, Mapping[str, float]], key: str) -> None:
        self._values: dict[tuple[str | None, str | None], float] = {}
        for entity, values in quotas.items():
            if key in values:
                parts = dict(entity)
                self._values[parts.get(USER, _ABSENT), parts.get(CLIENT_ID, _ABSENT)] = values[key]

    def __bool__(self) -> bool:
        return bool(self._values)

    def find(self, user: str, client_id: str) -> ClientBound | None:
        values = self._values
        has_id = client_id != _ABSENT
        for who, client, tags in (
            (user, client_id, (user, client_id)),
            (user, DEFAULT, (user, client_id)),
            (user, _ABSENT, (user, _ABSENT)),
            (DEFAULT, client_id, (user, client_id)),
            (DEFAULT, DEFAULT, (user, client_id)),
            (DEFAULT, _ABSENT, (user, _ABSENT)),
            (_ABSENT, client_id, (_ABSENT, client_id)),
            (_ABSENT, DEFAULT, (_ABSENT, client_id)),
        ):
            # Whoever says no client id has the quotas of users alone.
            if has_id or client == _ABSENT:
                value = values.get((who, client))
                if value is not None:
                    return ClientBound(value, *tags)
        return None


def of_addresses(quotas: Mapping[QuotaEntity, Mapping[str, float]], key: str) -> dict[str | None, float]:
    """The quotas of addresses; under `None` that of all others."""
    found = {}
    for entity, values in quotas.items():
        parts = dict(entity)
        if IP in parts and key in values:
            address = parts[IP]
            found[None if address is None else java_host(address)] = values[key]
    return found
