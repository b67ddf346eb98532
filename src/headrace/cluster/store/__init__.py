"""Where cluster metadata is kept: a log of records that only the elected controller may append to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from headrace.cluster.image import Image
from headrace.cluster.records import MetadataRecord, RemoveTopicRecord


class Store(Protocol):
    """The three verbs that a store has. All may block."""

    def elect(self, node_id: int) -> int:
        """Make this node the controller; the epoch won. Whoever was it before can append no more."""
        ...

    def append_if_epoch(self, epoch: int, records: Sequence[MetadataRecord]) -> int:
        """Append all records or none, durably; the offset after them.

        A `StaleControllerEpochError` says that another controller was elected since `epoch`.
        """
        ...

    def read_from(self, offset: int) -> Iterator[tuple[int, MetadataRecord]]:
        """The records from an offset on, each with its own.

        Old records may have been replaced by a snapshot. Then whoever asks for an offset before its end gets the whole
        snapshot, every record with the snapshot's last offset, and has to begin with an empty image.
        """
        ...


def fold(store: Store, image: Image) -> set[bytes]:
    """Bring an image up to date with a store: an empty one, or one that lags behind. The ids of topics deleted since.

    A deletion that a snapshot has taken the place of is not among them.
    """
    deleted = set()
    for offset, record in store.read_from(image.offset):
        if isinstance(record, RemoveTopicRecord):
            deleted.add(record.topic_id)
        image.apply(record)
        image.offset = offset + 1
    return deleted
