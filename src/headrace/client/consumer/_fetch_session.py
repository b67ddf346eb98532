"""A fetch session with one broker (KIP-227): only what changed since the last fetch is sent, only news come back."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import ErrorCode
from headrace.protocol.messages.fetch import FetchPartition, FetchResponse, FetchTopic, ForgottenTopic
from headrace.protocol.schema import ZERO_UUID
from headrace.topics import TopicPartition

_INITIAL_EPOCH = 0
_FINAL_EPOCH = -1
_EPOCH_MAX = 2_147_483_647
_NO_SESSION = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of one partition."""

    topic_id: bytes
    fetch_offset: int
    leader_epoch: int
    bytes_max: int


class FetchSessionHandler:
    """The client's half of a session. One request is under way at a time.

    One that is not kept has the broker remember nothing: whoever asks a few times only does not take a place there.
    """

    def __init__(self, *, is_kept: bool = True) -> None:
        self._first_epoch = _INITIAL_EPOCH if is_kept else _FINAL_EPOCH
        self.session_id = _NO_SESSION
        self.epoch = self._first_epoch
        self.wanted: dict[TopicPartition, Wanted] = {}
        """What the broker has in its half after the request under way."""
        self._names: dict[bytes, str] = {}
        self._is_told = True
        """Whether what was built last is on its way. If that was interrupted, the broker's half may be another: were
        only changes sent, it would go on to send what was asked for before, to be taken for what is asked for."""

    def build(self, wanted: dict[TopicPartition, Wanted]) -> tuple[list[FetchTopic], list[ForgottenTopic], bool]:
        """Topics to send, topics to forget, and whether topics can be named by their ids. `told` when it is sent."""
        if not self._is_told:
            self.epoch = self._first_epoch
        self._is_told = False
        by_id = all(one.topic_id != ZERO_UUID for one in wanted.values())
        if self.epoch == self._first_epoch:
            changed, forgotten = wanted, {}
        else:
            changed = {name: one for name, one in wanted.items() if self.wanted.get(name) != one}
            forgotten = {
                name: one
                for name, one in self.wanted.items()
                if name not in wanted or wanted[name].topic_id != one.topic_id
            }
        self.wanted = wanted
        self._names = {one.topic_id: name.topic for name, one in wanted.items()}
        return _topics(changed), _forgotten(forgotten), by_id

    def told(self) -> None:
        """The request that was built is under way."""
        self._is_told = True

    def topic_name(self, topic: str, topic_id: bytes) -> str | None:
        """The topic that an answer means; None for one that was not asked for."""
        return topic or self._names.get(topic_id)

    def answered(self, response: FetchResponse) -> None:
        """Take in how the session stands after an answer."""
        if response.error_code:
            if response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self.session_id = _NO_SESSION
            self.epoch = self._first_epoch
        elif response.session_id == _NO_SESSION:
            # The broker keeps no session for us: everything is sent every time.
            self.session_id, self.epoch = _NO_SESSION, self._first_epoch
        else:
            self.session_id = response.session_id
            self.epoch = 1 if self.epoch >= _EPOCH_MAX else self.epoch + 1

    def failed(self) -> None:
        """No answer: whether the broker took the request is not known, so the next one starts the session anew."""
        self.epoch = self._first_epoch

    @property
    def final(self) -> tuple[int, int] | None:
        """Id and epoch of the request that closes the session; None if there is none."""
        return None if self.session_id == _NO_SESSION else (self.session_id, _FINAL_EPOCH)


def _topics(wanted: dict[TopicPartition, Wanted]) -> list[FetchTopic]:
    topics: dict[str, FetchTopic] = {}
    for name, one in wanted.items():
        topic = topics.get(name.topic)
        if topic is None:
            topic = topics[name.topic] = FetchTopic(topic=name.topic, topic_id=one.topic_id, partitions=[])
        topic.partitions.append(
            FetchPartition(
                partition=name.partition,
                current_leader_epoch=one.leader_epoch,
                fetch_offset=one.fetch_offset,
                partition_max_bytes=one.bytes_max,
            )
        )
    return list(topics.values())


def _forgotten(gone: dict[TopicPartition, Wanted]) -> list[ForgottenTopic]:
    topics: dict[tuple[str, bytes], ForgottenTopic] = {}
    for name, one in gone.items():
        topic = topics.setdefault(
            (name.topic, one.topic_id), ForgottenTopic(topic=name.topic, topic_id=one.topic_id, partitions=[])
        )
        topic.partitions.append(name.partition)
    return list(topics.values())
