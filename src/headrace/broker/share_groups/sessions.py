"""Share sessions: which partitions a member of a share group reads of this broker, so that it names them only once.

A member has one, opened with epoch 0 and continued with rising epochs. It belongs to the connection that opened it, and
ends with that.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from headrace.errors import ErrorCode

FIRST_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_EPOCH_MAX: Final = 2**31 - 1

#: Topic id and number.
PartitionKey: TypeAlias = tuple[bytes, int]


class SessionKey(NamedTuple):
    group_id: str
    member_id: str


@dataclass(slots=True, eq=False)
class ShareSession:
    """`partitions` in the order in which they were named, each with whether the next answer has to name it."""

    key: SessionKey
    connection: Hashable
    partitions: dict[PartitionKey, bool]
    epoch: int = FIRST_EPOCH + 1

    def update(self, named: Iterable[PartitionKey], forgotten: Iterable[PartitionKey]) -> None:
        for key in named:
            self.partitions.setdefault(key, True)
        for key in forgotten:
            self.partitions.pop(key, None)


@dataclass(slots=True)
class ShareSessions:
    """All of a broker. `sessions_max` is how many there may be."""

    sessions_max: int
    _sessions: dict[SessionKey, ShareSession] = field(default_factory=dict)
    _by_connection: dict[Hashable, set[SessionKey]] = field(default_factory=dict)
    _members: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._sessions)

    def has_members(self, group_id: str) -> bool:
        return group_id in self._members

    def open(self, key: SessionKey, connection: Hashable, partitions: Iterable[PartitionKey]) -> ShareSession | None:
        """A new one, in place of an earlier one; None: there are too many."""
        self.remove(key)
        if len(self._sessions) >= self.sessions_max:
            return None
        session = ShareSession(key, connection, dict.fromkeys(partitions, False))
        self._sessions[key] = session
        self._by_connection.setdefault(connection, set()).add(key)
        self._members[key.group_id] = self._members.get(key.group_id, 0) + 1
        return session

    def find(self, key: SessionKey, epoch: int) -> ShareSession | ErrorCode:
        """The session that goes on with this epoch, which counts from then on; any epoch of it, for the final one."""
        session = self._sessions.get(key)
        if session is None:
            return ErrorCode.SHARE_SESSION_NOT_FOUND
        if epoch == FINAL_EPOCH:
            return session
        if epoch != session.epoch:
            return ErrorCode.INVALID_SHARE_SESSION_EPOCH
        session.epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        return session

    def has(self, session: ShareSession) -> bool:
        """Whether this very session goes on: it did not end, and its member has not opened another one."""
        return self._sessions.get(session.key) is session

    def remove(self, key: SessionKey) -> ShareSession | None:
        session = self._sessions.pop(key, None)
        if session is None:
            return None
        theirs = self._by_connection[session.connection]
        theirs.discard(key)
        if not theirs:
            del self._by_connection[session.connection]
        self._members[key.group_id] -= 1
        if not self._members[key.group_id]:
            del self._members[key.group_id]
        return session

    def of_connection(self, connection: Hashable) -> list[ShareSession]:
        """Those that a connection opened, and that end with it."""
        return [self._sessions[key] for key in self._by_connection.get(connection, ())]

    def all(self) -> list[ShareSession]:
        return list(self._sessions.values())
