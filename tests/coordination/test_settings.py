"""What coordinators read from the broker's configuration: its keys, and its defaults."""

from __future__ import annotations

import dataclasses

import pytest

from headrace.cluster.broker_config import BROKER_CONFIGS
from headrace.groups import GroupConfig
from headrace.groups.config import _KEYS as GROUP_KEYS
from headrace.transactions import TransactionConfig
from headrace.transactions.config import _KEYS as TRANSACTION_KEYS


@pytest.mark.parametrize(("config", "keys"), [(GroupConfig, GROUP_KEYS), (TransactionConfig, TRANSACTION_KEYS)])
def test_the_defaults_of_a_coordinator_are_those_of_the_broker(config: type, keys: dict[str, str]) -> None:
    defaults = BROKER_CONFIGS.defaults()
    assert config.from_values(defaults) == config() == config.from_values({})  # type: ignore[attr-defined]
    assert keys.keys() <= {field.name for field in dataclasses.fields(config)}
    assert set(keys.values()) <= defaults.keys()


@pytest.mark.parametrize(("config", "keys"), [(GroupConfig, GROUP_KEYS), (TransactionConfig, TRANSACTION_KEYS)])
def test_every_key_reaches_its_setting(config: type, keys: dict[str, str]) -> None:
    values = {key: 1_000 + number for number, key in enumerate(keys.values())}
    found = config.from_values(values)  # type: ignore[attr-defined]
    assert {name: getattr(found, name) for name in keys} == {name: values[key] for name, key in keys.items()}


def test_retention_is_told_in_minutes() -> None:
    assert GroupConfig.from_values({"offsets.retention.minutes": 2}).offsets_retention_ms == 120_000
