"""Every broker's image is the fold of a prefix of the store's log, whichever way its records came to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from headrace.broker.broker import Broker
from headrace.cluster.image import Image
from headrace.cluster.records import MetadataRecord
from headrace.cluster.store.batches import records_of
from headrace.cluster.store.model import ZooKeeperModel
from headrace.cluster.store.node_formats import LOG, decode_log_node
from headrace.cluster.store.session import Create, Delete, Operation
from headrace.testing.simulated.history import BrokenError

# They say how an image came to be, not what is in it.
_COUNTERS = ("offset", "version", "brokers_version", "topics_by_id", "topics")


def content(image: Image) -> dict[str, Any]:
    """What is in an image, to be compared at once: the values are those of the image."""
    found = {field.name: getattr(image, field.name) for field in fields(image) if field.name not in _COUNTERS}
    found["topics"] = {topic.name: (topic.topic_id, topic.partitions) for topic in image.topics.values()}
    found["topics_by_id"] = {topic_id: topic.name for topic_id, topic in image.topics_by_id.items()}
    return found


class StoredLog:
    """All records that the store ever acknowledged, those that a snapshot took the place of among them."""

    def __init__(self, model: ZooKeeperModel) -> None:
        self._model = model
        self._seen = 0
        self._unfinished: dict[str, list[MetadataRecord]] = {}
        self.records: list[MetadataRecord] = []

    def read(self) -> None:
        changes = self._model.changes
        for _, operations in changes[self._seen :]:
            self._take(operations or ())
        self._seen = len(changes)

    def _take(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            if isinstance(operation, Delete):
                # What a controller did not finish, and the next one removed; or what a snapshot stands for.
                self._unfinished.pop(operation.path, None)
            elif isinstance(operation, Create) and operation.path.startswith(f"{LOG}/"):
                node = decode_log_node(operation.path, operation.data)
                entries = list(records_of(node.batch, operation.path))
                offset = len(self.records) + sum(map(len, self._unfinished.values()))
                if [found for found, _ in entries] != list(range(offset, offset + len(entries))):
                    raise BrokenError(f"{operation.path} does not go on at offset {offset}: {entries[0][0]}")
                self._unfinished[operation.path] = [record for _, record in entries]
                if node.ends_group:
                    for records in self._unfinished.values():
                        self.records += records
                    self._unfinished.clear()


def stored_image(model: ZooKeeperModel) -> Image:
    """The metadata as the store has it: a broker may not have heard of all of it yet."""
    log, image = StoredLog(model), Image()
    log.read()
    for record in log.records:
        image.apply(record)
    return image


class MetadataPrefixes:
    """Folds the store's log for each life of a broker, as far as that has come."""

    def __init__(self, model: ZooKeeperModel) -> None:
        self._log = StoredLog(model)
        self._folded: dict[int, tuple[bytes, Image]] = {}

    def check(self, alive: Sequence[Broker]) -> None:
        self._log.read()
        for broker in alive:
            self._check(broker)

    def _check(self, broker: Broker) -> None:
        life, folded = self._folded.get(broker.node_id, (None, None))
        if folded is None or life != broker.incarnation:
            folded = Image()
            self._folded[broker.node_id] = (broker.incarnation, folded)
        offset, end = broker.image.offset, len(self._log.records)
        if offset > end:
            raise BrokenError(f"broker {broker.node_id} has metadata up to {offset}, but the store only up to {end}")
        if offset < folded.offset:
            raise BrokenError(f"broker {broker.node_id} went from metadata offset {folded.offset} back to {offset}")
        if offset == folded.offset:
            return
        for record in self._log.records[folded.offset : offset]:
            folded.apply(record)
        folded.offset = offset
        mine, stored = content(broker.image), content(folded)
        if mine != stored:
            different = [name for name, value in mine.items() if value != stored[name]]
            raise BrokenError(
                f"the image of broker {broker.node_id} at {offset} is not what the store's log makes: {different}"
            )
