"""The settings of single groups, as they are in effect: their own, or the broker's for groups of their kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from headrace.cluster.group_config import GROUP_CONFIGS
from headrace.config import ConfigValue


class GroupSettings(Protocol):
    def values(self, group_id: str) -> Mapping[str, ConfigValue]:
        """All settings of a group, by the names that they have as configs of a group. Not to be changed."""


class DefaultSettings:
    """Those of groups that have none of their own, on a broker that has none either."""

    def __init__(self) -> None:
        self._values: Final = GROUP_CONFIGS.defaults()

    def values(self, group_id: str) -> Mapping[str, ConfigValue]:
        return self._values


def number(settings: GroupSettings, group_id: str, name: str) -> int:
    value = settings.values(group_id)[name]
    assert isinstance(value, int), f"{name} is a number"
    return value
