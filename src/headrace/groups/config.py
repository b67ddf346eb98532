"""The settings of the group coordinator, read from the broker's configuration under Kafka's own names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.config import INT32_MAX, ConfigValue
from headrace.coordination import settings
from headrace.groups.consumer.config import ConsumerGroupConfig
from headrace.groups.share.config import ShareGroupConfig
from headrace.groups.streams.config import StreamsGroupConfig

_KEYS = {
    "min_session_timeout_ms": "group.min.session.timeout.ms",
    "max_session_timeout_ms": "group.max.session.timeout.ms",
    "initial_rebalance_delay_ms": "group.initial.rebalance.delay.ms",
    "max_size": "group.max.size",
    "offset_metadata_max_bytes": "offset.metadata.max.bytes",
    "offsets_retention_minutes": "offsets.retention.minutes",
    "offsets_retention_check_interval_ms": "offsets.retention.check.interval.ms",
    "offsets_topic_partitions": "offsets.topic.num.partitions",
}


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The values in effect, with the defaults of Kafka. The last two numbers are constants there."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = INT32_MAX
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    offsets_topic_partitions: int = 50
    consumer: ConsumerGroupConfig = field(default_factory=ConsumerGroupConfig)
    share: ShareGroupConfig = field(default_factory=ShareGroupConfig)
    streams: StreamsGroupConfig = field(default_factory=StreamsGroupConfig)
    # A new member cannot send heartbeats while its first JoinGroup waits; after this long it is given up.
    new_member_join_timeout_ms: int = 300_000
    # So many tombstones are written in one step, by expiry, for deleted topics or groups. It takes some 30 ms.
    tombstones_max: int = 1_000

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000

    @classmethod
    def from_values(cls, values: Mapping[str, ConfigValue]) -> GroupConfig:
        """From parsed broker configuration; keys of others are ignored, missing ones have their defaults."""
        return cls(
            **settings(_KEYS, values),
            consumer=ConsumerGroupConfig.from_values(values),
            share=ShareGroupConfig.from_values(values),
            streams=StreamsGroupConfig.from_values(values),
        )
