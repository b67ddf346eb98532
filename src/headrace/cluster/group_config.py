"""What can be configured about one group: the keys of the newer kinds of groups, whose defaults are the broker's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.config import (
    ConfigDefinition,
    ConfigError,
    ConfigKey,
    ConfigType,
    ConfigValue,
    Synonym,
    at_least,
    matching,
    one_of,
)


def _key(name: str, default: int, low: int, doc: str) -> ConfigKey:
    return ConfigKey(name, ConfigType.INT, default, at_least(low), doc=doc, synonyms=(Synonym(f"group.{name}"),))


GROUP_CONFIGS: Final = ConfigDefinition(
    (
        _key("consumer.assignment.interval.ms", 1000, 0, "How long a target assignment is kept at least."),
        _key("consumer.heartbeat.interval.ms", 5000, 1, "How often members send heartbeats."),
        _key("consumer.session.timeout.ms", 45000, 1, "How long a member may be silent before it is put out."),
        _key("share.assignment.interval.ms", 1000, 0, "How long a target assignment is kept at least."),
        ConfigKey(
            "share.auto.offset.reset",
            ConfigType.STRING,
            "latest",
            matching("latest, earliest or by_duration:PnDTnHnMn.nS", r"latest|earliest|by_duration:P[0-9DTHMS.]+"),
            doc="Where a share group begins in a partition that it never read.",
        ),
        _key("share.delivery.count.limit", 5, 2, "How often a record is delivered before it is given up."),
        _key("share.heartbeat.interval.ms", 5000, 1, "How often members send heartbeats."),
        ConfigKey(
            "share.isolation.level",
            ConfigType.STRING,
            "read_uncommitted",
            one_of("read_committed", "read_uncommitted"),
            doc="Whether records of transactions are delivered before these have ended, and of aborted ones.",
        ),
        _key("share.partition.max.record.locks", 2000, 100, "Most records of a partition that may be in flight."),
        _key("share.record.lock.duration.ms", 30000, 1000, "How long a member has a record before others get it."),
        ConfigKey(
            "share.renew.acknowledge.enable",
            ConfigType.BOOLEAN,
            True,
            doc="Whether members may prolong the time for which they have records.",
        ),
        _key("share.session.timeout.ms", 45000, 1, "How long a member may be silent before it is put out."),
        _key("streams.assignment.interval.ms", 1000, 0, "How long a target assignment is kept at least."),
        _key("streams.heartbeat.interval.ms", 5000, 1, "How often members send heartbeats."),
        _key("streams.initial.rebalance.delay.ms", 3000, 0, "How long a group waits for more members at first."),
        _key("streams.num.standby.replicas", 0, 0, "Copies of the state of a task that are kept elsewhere."),
        _key("streams.session.timeout.ms", 45000, 1, "How long a member may be silent before it is put out."),
    )
)

# The broker's limits are named like the key, with `min` or `max` after the kind of group.
_UPPER_LIMIT_ONLY: Final = {"streams.num.standby.replicas": "group.streams.max.standby.replicas"}


def check_limits(values: Mapping[str, ConfigValue], broker: Mapping[str, ConfigValue]) -> None:
    """Refuse values of a group that the broker's own limits forbid; `broker` has the broker's values in effect."""
    problems: dict[str, str] = {}
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        kind, _, rest = name.partition(".")
        low = f"group.{kind}.min.{rest}"
        high = _UPPER_LIMIT_ONLY.get(name, f"group.{kind}.max.{rest}")
        minimum, maximum = broker.get(low), broker.get(high)
        if isinstance(minimum, int) and value < minimum:
            problems[name] = f"{name} is {value}, but must be at least {low}, which is {minimum}"
        if isinstance(maximum, int) and value > maximum:
            problems[name] = f"{name} is {value}, but must be at most {high}, which is {maximum}"
    for kind in ("consumer", "share", "streams"):
        heartbeat = values.get(f"{kind}.heartbeat.interval.ms")
        session = values.get(f"{kind}.session.timeout.ms")
        if isinstance(heartbeat, int) and isinstance(session, int) and heartbeat >= session:
            problems[f"{kind}.session.timeout.ms"] = (
                f"{kind}.session.timeout.ms is {session}, but must be greater than {kind}.heartbeat.interval.ms, "
                f"which is {heartbeat}"
            )
    if problems:
        raise ConfigError(problems)
