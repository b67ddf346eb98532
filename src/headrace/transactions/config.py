"""The settings of the transaction coordinator, read from the broker's configuration under Kafka's own names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.config import ConfigValue
from headrace.coordination import settings

_KEYS = {
    "max_timeout_ms": "transaction.max.timeout.ms",
    "id_expiration_ms": "transactional.id.expiration.ms",
    "state_topic_partitions": "transaction.state.log.num.partitions",
    "abort_interval_ms": "transaction.abort.timed.out.transaction.cleanup.interval.ms",
    "expiry_interval_ms": "transaction.remove.expired.transaction.cleanup.interval.ms",
    "offsets_topic_partitions": "offsets.topic.num.partitions",
}


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """The values in effect, with the defaults of Kafka. The last two are constants."""

    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 604_800_000
    state_topic_partitions: int = 50
    abort_interval_ms: int = 10_000
    expiry_interval_ms: int = 3_600_000
    offsets_topic_partitions: int = 50
    # How long to wait before a marker, or the record after the last marker, is tried again.
    retry_backoff_ms: int = 100
    # A pass over unused ids writes at most this many tombstones, so that no pass holds everyone up (some 60 ms).
    expiry_records_max: int = 1_000

    @classmethod
    def from_values(cls, values: Mapping[str, ConfigValue]) -> TransactionConfig:
        """From parsed broker configuration; keys of others are ignored, missing ones have their defaults."""
        return cls(**settings(_KEYS, values))
