"""The broker's settings of consumer groups that none of them has for itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import cast

from headrace.config import INT32_MAX, ConfigValue


class MigrationPolicy(Enum):
    """Which protocol a group with members may change to. One without members may always change."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def allows_upgrade(self) -> bool:
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def allows_downgrade(self) -> bool:
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


@dataclass(frozen=True, slots=True)
class ConsumerGroupConfig:
    max_size: int = INT32_MAX
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    assignors: tuple[str, ...] = ("uniform", "range")
    regex_refresh_interval_ms: int = 600_000

    @classmethod
    def from_values(cls, values: Mapping[str, ConfigValue]) -> ConsumerGroupConfig:
        """From parsed broker configuration; missing keys have their defaults."""
        default = cls()
        return cls(
            cast(int, values.get("group.consumer.max.size", default.max_size)),
            MigrationPolicy(str(values.get("group.consumer.migration.policy", "bidirectional")).lower()),
            tuple(cast("tuple[str, ...]", values.get("group.consumer.assignors", default.assignors))),
            cast(int, values.get("group.consumer.regex.refresh.interval.ms", default.regex_refresh_interval_ms)),
        )
