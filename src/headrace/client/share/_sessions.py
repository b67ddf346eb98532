"""What a share consumer has with one broker: a session, one request under way, and what is to be said of records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from headrace.client.share.records import AcknowledgeType
from headrace.net.connection import Call
from headrace.protocol.messages import share_acknowledge as acknowledging
from headrace.protocol.messages import share_fetch as fetching

PartitionKey: TypeAlias = tuple[bytes, int]
#: Of each partition, what is said of its offsets.
Said: TypeAlias = dict[PartitionKey, dict[int, AcknowledgeType]]

FINAL_EPOCH = -1
_EPOCH_MAX = 2**31 - 1


@dataclass(slots=True, eq=False)
class BrokerSession:
    node_id: int
    epoch: int = 0
    partitions: frozenset[PartitionKey] = frozenset()  # as the broker has them
    call: Call | None = None
    unsent: Said = field(default_factory=dict)
    sent: Said = field(default_factory=dict)
    retry_at: float = 0.0

    @property
    def is_open(self) -> bool:
        return self.epoch > 0

    def say(self, key: PartitionKey, offset: int, kind: AcknowledgeType) -> None:
        self.unsent.setdefault(key, {})[offset] = kind

    def began(self, partitions: frozenset[PartitionKey]) -> None:
        """A request of this epoch was answered."""
        self.epoch = 1 if self.epoch == _EPOCH_MAX else self.epoch + 1
        self.partitions = partitions

    def lost(self) -> None:
        """The broker knows nothing of it any more: the next fetch opens another."""
        self.epoch, self.partitions = 0, frozenset()

    def take_unsent(self, *, renewals: bool = True) -> Said:
        """What goes along with the next request."""
        if renewals:
            self.sent, self.unsent = self.unsent, {}
            return self.sent
        self.sent = {}
        for key, offsets in list(self.unsent.items()):
            now: dict[int, AcknowledgeType] = {
                offset: kind for offset, kind in offsets.items() if kind is not AcknowledgeType.RENEW
            }
            if now:
                self.sent[key] = now
            left: dict[int, AcknowledgeType] = {
                offset: kind for offset, kind in offsets.items() if kind is AcknowledgeType.RENEW
            }
            if left:
                self.unsent[key] = left
            else:
                del self.unsent[key]
        return self.sent

    @property
    def has_renewals(self) -> bool:
        return any(AcknowledgeType.RENEW in offsets.values() for offsets in self.unsent.values())


def runs(offsets: Mapping[int, AcknowledgeType]) -> Iterable[tuple[int, int, list[int]]]:
    """Offsets as runs of neighbours: first, last, and one type for all or one for each."""
    first, last = min(offsets, default=0), max(offsets, default=-1)
    if last - first + 1 == len(offsets) and len(set(offsets.values())) == 1:
        # As it is nearly always: all that one fetch brought.
        yield first, last, [int(offsets[first])]
        return
    found: list[tuple[int, list[int]]] = []
    for offset in sorted(offsets):
        if found and found[-1][0] + len(found[-1][1]) == offset:
            found[-1][1].append(int(offsets[offset]))
        else:
            found.append((offset, [int(offsets[offset])]))
    for first, kinds in found:
        yield first, first + len(kinds) - 1, kinds[:1] if len(set(kinds)) == 1 else kinds


def fetch_topics(partitions: Iterable[PartitionKey], said: Said) -> list[fetching.FetchTopic]:
    topics: dict[bytes, fetching.FetchTopic] = {}
    for key in sorted({*partitions, *said}):
        if key[0] not in topics:
            topics[key[0]] = fetching.FetchTopic(topic_id=key[0], partitions=[])
        topics[key[0]].partitions.append(
            fetching.FetchPartition(
                partition_index=key[1],
                acknowledgement_batches=[
                    fetching.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=kinds)
                    for first, last, kinds in runs(said.get(key, {}))
                ],
            )
        )
    return list(topics.values())


def forgotten_topics(partitions: Iterable[PartitionKey]) -> list[fetching.ForgottenTopic]:
    topics: dict[bytes, fetching.ForgottenTopic] = {}
    for topic_id, partition in sorted(partitions):
        if topic_id not in topics:
            topics[topic_id] = fetching.ForgottenTopic(topic_id=topic_id, partitions=[])
        topics[topic_id].partitions.append(partition)
    return list(topics.values())


def acknowledge_topics(said: Said) -> list[acknowledging.AcknowledgeTopic]:
    topics: dict[bytes, acknowledging.AcknowledgeTopic] = {}
    for (topic_id, partition), offsets in sorted(said.items()):
        if topic_id not in topics:
            topics[topic_id] = acknowledging.AcknowledgeTopic(topic_id=topic_id, partitions=[])
        topics[topic_id].partitions.append(
            acknowledging.AcknowledgePartition(
                partition_index=partition,
                acknowledgement_batches=[
                    acknowledging.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=kinds)
                    for first, last, kinds in runs(offsets)
                ],
            )
        )
    return list(topics.values())
