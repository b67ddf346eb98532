"""What an operator changes of topics while they are written to: each change is of a topic that nothing else is promised
of than before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.broker.broker import Broker
from headrace.client.admin.types import ResourceType
from headrace.testing.simulated.history import BrokenError, History

#: Of any topic. Segments of a batch or two come from an index without room for more entries: `segment.bytes` cannot be
#: below 1 MB. Fewer replicas than the plan has are never enough, as acknowledged is what so many have.
CHANGES: tuple[Mapping[str, str], ...] = (
    {"index.interval.bytes": "0", "segment.index.bytes": "16"},
    {"segment.ms": "200"},
    {"message.timestamp.type": "LogAppendTime"},
    {"message.timestamp.type": "CreateTime"},
    {"compression.type": "gzip"},
    {"compression.type": "lz4"},
    {"compression.type": "zstd"},
    {"compression.type": "snappy"},
    {"compression.type": "uncompressed"},
    {"min.insync.replicas": "3"},
    {"min.insync.replicas": "3", "message.timestamp.type": "LogAppendTime"},
    {"flush.messages": "1"},
)
#: Of those whose records brokers remove, beside the above.
TRIMMED_CHANGES: dict[str, tuple[Mapping[str, str], ...]] = {
    "compacted": (
        {"min.cleanable.dirty.ratio": "0.9"},
        {"min.compaction.lag.ms": "300"},
        {"max.compaction.lag.ms": "300", "segment.ms": "100"},
        {"cleanup.policy": "compact,delete", "retention.ms": "1500"},
        {"delete.retention.ms": "0"},
    ),
    "retained": (
        {"retention.ms": "300"},
        {"retention.ms": "-1", "retention.bytes": "2000"},
        {"segment.ms": "100", "file.delete.delay.ms": "0"},
    ),
}
#: What is put back before the end, so that nothing waits for it.
PASSING = "min.insync.replicas"


def change_of(topic: str, level: float) -> Mapping[str, str]:
    """The change that a number below 1 stands for; of a topic that is trimmed half of them are of its own."""
    own = TRIMMED_CHANGES.get(topic)
    if own is not None and level < 0.5:
        return own[int(level * 2 * len(own))]
    rest = level if own is None else (level - 0.5) * 2
    return CHANGES[int(rest * len(CHANGES))]


def check_configs(history: History, brokers: Iterable[Broker]) -> None:
    """Topics are configured as the last answer said, and so are all their logs."""
    for broker in brokers:
        for topic, wanted in history.configs.items():
            found = broker.image.config(ResourceType.TOPIC, topic)
            for name, value in wanted.items():
                if found.get(name) != value:
                    raise BrokenError(f"{topic}: {name} was set to {value}, and is {found.get(name)}")
        for key, partition in broker.replicas.partitions.items():
            if partition.log.config != broker.log_config(key[0]):
                raise BrokenError(f"{key[0]}-{key[1]} on broker {broker.node_id} is not configured as its topic is")
