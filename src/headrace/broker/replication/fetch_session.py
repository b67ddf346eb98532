"""A follower's half of a fetch session with one leader (KIP-227), without I/O: what to tell, what to forget.

What it costs follows the partitions that changed, not those that there are: a partition is looked at again when it got
an answer, was added, or was taken away.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from headrace.broker.replication.follower import Position
from headrace.protocol.messages.fetch import FetchPartition, FetchTopic, ForgottenTopic

Key: TypeAlias = tuple[bytes, int]
"""A topic's id, and the number of a partition."""

NO_SESSION: Final = 0
FULL_EPOCH: Final = 0
_EPOCH_MAX: Final = 2**31 - 1


class FollowerSession:
    """One request is under way at a time: `build`, then `answered` or `failed`."""

    __slots__ = ("_bytes_max", "_changed", "_forgotten", "asked", "epoch", "session_id")

    def __init__(self, partition_bytes_max: int) -> None:
        self._bytes_max = partition_bytes_max
        self.session_id = NO_SESSION
        self.epoch = FULL_EPOCH
        #: What the leader has of us once the request under way has reached it.
        self.asked: dict[Key, Position] = {}
        self._changed: dict[Key, None] = {}
        self._forgotten: dict[Key, None] = {}

    def ask(self, key: Key, position: Position) -> None:
        """Fetch a partition from there on."""
        if self.asked.get(key) != position:
            self.asked[key] = position
            self._changed[key] = None
            self._forgotten.pop(key, None)

    def ask_again(self, key: Key) -> None:
        """Name a partition again though nothing is new of it: what its leader said was of no use."""
        if key in self.asked:
            self._changed[key] = None

    def forget(self, key: Key) -> None:
        """Fetch it no more."""
        if self.asked.pop(key, None) is not None:
            self._changed.pop(key, None)
            self._forgotten[key] = None

    def build(self) -> tuple[list[FetchTopic], list[ForgottenTopic]]:
        """Topics to name and topics to forget in the next request."""
        is_full = self.epoch == FULL_EPOCH
        topics: dict[bytes, FetchTopic] = {}
        for key in self.asked if is_full else self._changed:
            position = self.asked[key]
            topic = topics.get(key[0])
            if topic is None:
                topic = topics[key[0]] = FetchTopic(topic_id=key[0], partitions=[])
            topic.partitions.append(
                FetchPartition(
                    partition=position.partition,
                    current_leader_epoch=position.leader_epoch,
                    fetch_offset=position.offset,
                    last_fetched_epoch=position.last_fetched_epoch,
                    log_start_offset=position.start_offset,
                    partition_max_bytes=self._bytes_max,
                )
            )
        forgotten: dict[bytes, ForgottenTopic] = {}
        if not is_full:
            for topic_id, index in self._forgotten:
                gone = forgotten.get(topic_id)
                if gone is None:
                    gone = forgotten[topic_id] = ForgottenTopic(topic_id=topic_id, partitions=[])
                gone.partitions.append(index)
        self._changed.clear()
        self._forgotten.clear()
        return list(topics.values()), list(forgotten.values())

    def answered(self, session_id: int) -> None:
        """The leader has taken the request, and keeps a session of that id (0: none)."""
        if session_id == NO_SESSION:
            self.failed()
            self.session_id = NO_SESSION
        else:
            self.session_id = session_id
            self.epoch = 1 if self.epoch >= _EPOCH_MAX else self.epoch + 1

    def failed(self) -> None:
        """Nobody knows whether the request was taken: the next one begins the session anew, and ends the old one."""
        self.epoch = FULL_EPOCH
        self._changed.clear()
        self._forgotten.clear()
