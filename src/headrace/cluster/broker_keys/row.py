"""What one row in the tables of broker configuration keys says."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from headrace.config import Check, ConfigKey, ConfigType, ConfigValue, Importance


class UpdateMode(enum.Enum):
    """Whether a key can change while the broker runs, and for whom at once; the values are Kafka's words."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


BOOLEAN: Final = ConfigType.BOOLEAN
STRING: Final = ConfigType.STRING
INT: Final = ConfigType.INT
SHORT: Final = ConfigType.SHORT
LONG: Final = ConfigType.LONG
DOUBLE: Final = ConfigType.DOUBLE
LIST: Final = ConfigType.LIST
CLASS: Final = ConfigType.CLASS
PASSWORD: Final = ConfigType.PASSWORD
HIGH: Final = Importance.HIGH
LOW: Final = Importance.LOW
PER_BROKER: Final = UpdateMode.PER_BROKER
CLUSTER_WIDE: Final = UpdateMode.CLUSTER_WIDE

_INERT_DOC: Final = "Accepted, as Kafka has it; it changes nothing here."


@dataclass(frozen=True, slots=True)
class BrokerKey:
    """A key of the broker: how it may change, and whether it does anything.

    `inert` keys are taken so that a configuration made for Kafka works, and change nothing. `internal` ones are not
    shown by DescribeConfigs, and `dynamic_only` ones (throttles) exist only as dynamic configuration.
    """

    key: ConfigKey
    mode: UpdateMode
    inert: bool
    internal: bool
    dynamic_only: bool

    @property
    def name(self) -> str:
        return self.key.name


def broker_key(
    name: str,
    type_: ConfigType,
    default: ConfigValue,
    *,
    doc: str | None = None,
    check: Check | None = None,
    mode: UpdateMode = UpdateMode.READ_ONLY,
    importance: Importance = Importance.MEDIUM,
    internal: bool = False,
    dynamic_only: bool = False,
) -> BrokerKey:
    """A row. A key without a `doc` of its own is one that changes nothing here."""
    key = ConfigKey(name, type_, default, check, doc=doc or _INERT_DOC, importance=importance)
    return BrokerKey(key, mode, inert=doc is None, internal=internal, dynamic_only=dynamic_only)
