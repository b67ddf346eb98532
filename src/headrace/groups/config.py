"""The settings of the group coordinator, under Kafka's own names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from headrace.config import (
    INT32_MAX,
    ConfigDefinition,
    ConfigKey,
    ConfigType,
    ConfigValue,
    Importance,
    at_least,
)

GROUP_CONFIGS = ConfigDefinition(
    [
        ConfigKey(
            "group.min.session.timeout.ms",
            ConfigType.INT,
            6_000,
            doc="The shortest session time-out that a member may ask for.",
        ),
        ConfigKey(
            "group.max.session.timeout.ms",
            ConfigType.INT,
            1_800_000,
            doc="The longest session time-out that a member may ask for.",
        ),
        ConfigKey(
            "group.initial.rebalance.delay.ms",
            ConfigType.INT,
            3_000,
            doc="How long an empty group waits for more members after the first one before it rebalances.",
        ),
        ConfigKey(
            "group.max.size",
            ConfigType.INT,
            INT32_MAX,
            at_least(1),
            doc="The most members that one group may have.",
        ),
        ConfigKey(
            "offset.metadata.max.bytes",
            ConfigType.INT,
            4_096,
            doc="The longest metadata that may be committed with an offset.",
            importance=Importance.HIGH,
        ),
        ConfigKey(
            "offsets.retention.minutes",
            ConfigType.INT,
            10_080,
            at_least(1),
            doc="How long offsets are kept after their group is empty, or no longer subscribed to the topic.",
            importance=Importance.HIGH,
        ),
        ConfigKey(
            "offsets.retention.check.interval.ms",
            ConfigType.LONG,
            600_000,
            at_least(1),
            doc="How often stale offsets and groups are looked for.",
            importance=Importance.HIGH,
        ),
        ConfigKey(
            "offsets.topic.num.partitions",
            ConfigType.INT,
            50,
            at_least(1),
            doc="The number of partitions of __consumer_offsets; it must not change once the topic exists.",
            importance=Importance.HIGH,
        ),
    ]
)


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The values in effect. The last two are constants in Kafka."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = INT32_MAX
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 10_080 * 60_000
    offsets_retention_check_interval_ms: int = 600_000
    offsets_topic_partitions: int = 50
    # A new member cannot send heartbeats while its first JoinGroup waits; after this long it is given up.
    new_member_join_timeout_ms: int = 300_000
    # A pass over stale offsets writes at most this many tombstones, so that no pass holds everyone up.
    expiry_records_max: int = 10_000

    @classmethod
    def from_values(cls, values: Mapping[str, ConfigValue]) -> GroupConfig:
        """From parsed values of `GROUP_CONFIGS`; keys of others are ignored, missing ones have their defaults."""

        def number(name: str) -> int:
            return cast(int, values.get(name, GROUP_CONFIGS[name].default))

        return cls(
            min_session_timeout_ms=number("group.min.session.timeout.ms"),
            max_session_timeout_ms=number("group.max.session.timeout.ms"),
            initial_rebalance_delay_ms=number("group.initial.rebalance.delay.ms"),
            max_size=number("group.max.size"),
            offset_metadata_max_bytes=number("offset.metadata.max.bytes"),
            offsets_retention_ms=number("offsets.retention.minutes") * 60_000,
            offsets_retention_check_interval_ms=number("offsets.retention.check.interval.ms"),
            offsets_topic_partitions=number("offsets.topic.num.partitions"),
        )
