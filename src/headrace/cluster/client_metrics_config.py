"""What can be configured about client metrics (KIP-714): which clients push which of their metrics, and how often."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from headrace.config import Check, ConfigDefinition, ConfigError, ConfigKey, ConfigType

INTERVAL_MIN_MS: Final = 100
INTERVAL_MAX_MS: Final = 3_600_000
INTERVAL_DEFAULT_MS: Final = 300_000
ALL_METRICS: Final = "*"
MATCHABLE: Final = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
PATTERN_LENGTH_MAX: Final = 1_000

METRICS, INTERVAL, MATCH = "metrics", "interval.ms", "match"

CLIENT_METRICS_CONFIGS: Final = ConfigDefinition(
    (
        ConfigKey(
            INTERVAL,
            ConfigType.INT,
            INTERVAL_DEFAULT_MS,
            Check(
                f"between {INTERVAL_MIN_MS} and {INTERVAL_MAX_MS} (1 hour)",
                lambda value: isinstance(value, int) and INTERVAL_MIN_MS <= value <= INTERVAL_MAX_MS,
            ),
            doc="Milliseconds between two pushes of a client.",
        ),
        ConfigKey(MATCH, ConfigType.LIST, (), doc="Which clients: name=regular expression; all of these hold."),
        ConfigKey(METRICS, ConfigType.LIST, (), doc="Beginnings of names of metrics; * for all."),
    )
)


def parse_patterns(match: Sequence[str]) -> dict[str, re.Pattern[str]]:
    """What a client has to be like, by what can be known of it."""
    found: dict[str, re.Pattern[str]] = {}
    for one in match:
        name, equals, pattern = one.partition("=")
        name, pattern = name.strip(), pattern.strip()
        if not equals or name not in MATCHABLE:
            raise ConfigError({MATCH: f"Illegal client matching pattern: {one} (known: {', '.join(MATCHABLE)})"})
        if len(pattern) > PATTERN_LENGTH_MAX:
            raise ConfigError({MATCH: f"the pattern of {name} is longer than {PATTERN_LENGTH_MAX} characters"})
        try:
            found[name] = re.compile(pattern)
        except re.error as error:
            raise ConfigError({MATCH: f"Illegal client matching pattern: {one} ({error})"}) from error
    return found


def check(overrides: Mapping[str, str]) -> None:
    """Refuse a subscription that could not be."""
    for name in overrides:
        if name not in CLIENT_METRICS_CONFIGS:
            raise ConfigError({name: f"Unknown client metrics configuration: {name}"})
    values = CLIENT_METRICS_CONFIGS.parse_given(overrides)
    match = values.get(MATCH)
    if isinstance(match, tuple):
        parse_patterns(match)
