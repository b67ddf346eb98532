"""The settings of one share group, from its own configs and those of the broker, under Kafka's names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.config import ConfigValue
from headrace.groups.share.deliveries import DeliveryLimits

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_BY_DURATION: Final = "by_duration:"
_DURATION: Final = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,9}))?S)?)?")


@dataclass(frozen=True, slots=True)
class ShareGroupSettings:
    """The values in effect. `reset` is where a partition begins that the group never read: `reset_age_ms` counts with
    "by_duration"."""

    limits: DeliveryLimits = field(default_factory=DeliveryLimits)
    reset: str = LATEST
    reset_age_ms: int = 0
    is_read_committed: bool = False

    @classmethod
    def from_values(cls, values: Mapping[str, ConfigValue]) -> ShareGroupSettings:
        """From the parsed configs of a group, all of which are given."""
        reset = str(values["share.auto.offset.reset"])
        limits = DeliveryLimits(
            lock_ms=_number(values, "share.record.lock.duration.ms"),
            deliveries_max=_number(values, "share.delivery.count.limit"),
            in_flight_max=_number(values, "share.partition.max.record.locks"),
            may_renew=bool(values["share.renew.acknowledge.enable"]),
        )
        return cls(
            limits,
            reset.partition(":")[0],
            duration_ms(reset.removeprefix(_BY_DURATION)) if reset.startswith(_BY_DURATION) else 0,
            values["share.isolation.level"] == "read_committed",
        )


def _number(values: Mapping[str, ConfigValue], name: str) -> int:
    value = values[name]
    assert isinstance(value, int), name
    return value


def duration_ms(text: str) -> int:
    """A duration as ISO 8601 writes it: P1DT2H30M0.5S; 0 for what is none."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return 0
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()[:4])
    fraction_ms = int((found[5] or "0").ljust(3, "0")[:3])
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + fraction_ms
