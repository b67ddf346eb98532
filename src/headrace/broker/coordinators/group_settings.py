"""The settings of single groups as they are in effect, worked out once after each change of the configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from headrace.cluster.configs import BrokerLayers, group_values
from headrace.cluster.image import Image
from headrace.cluster.records import ResourceType
from headrace.config import ConfigValue

_REMEMBERED_MAX: Final = 10_000
NO_GROUP: Final = ""


class BrokerGroupSettings:
    def __init__(self, image: Image, layers: Callable[[], BrokerLayers]) -> None:
        """`layers` gives the broker's own settings, as they are now."""
        self._image = image
        self._layers = layers
        self._known: dict[str, Mapping[str, ConfigValue]] = {}

    def forget(self) -> None:
        """The configuration has changed."""
        self._known.clear()

    def values(self, group_id: str) -> Mapping[str, ConfigValue]:
        found = self._known.get(group_id)
        if found is None:
            if len(self._known) >= _REMEMBERED_MAX:
                self._known.clear()
            own = self._image.config(ResourceType.GROUP, group_id)
            if own or group_id == NO_GROUP:
                found = group_values(self._layers(), own)
            else:
                found = self.values(NO_GROUP)
            self._known[group_id] = found
        return found
