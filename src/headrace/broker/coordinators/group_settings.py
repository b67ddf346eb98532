"""What coordinators go by: the broker's configuration, and the settings of single groups as they are in effect.

Those are worked out once after each change of the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from headrace.broker.view import ClusterView
from headrace.cluster.configs import BrokerLayers, group_values
from headrace.cluster.image import Image
from headrace.cluster.records import ResourceType
from headrace.cluster.topic_names import CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE
from headrace.config import ConfigValue

_REMEMBERED_MAX: Final = 10_000
NO_GROUP: Final = ""
_PARTITION_COUNT_KEYS: Final = {
    CONSUMER_OFFSETS: "offsets.topic.num.partitions",
    SHARE_GROUP_STATE: "share.coordinator.state.topic.num.partitions",
    TRANSACTION_STATE: "transaction.state.log.num.partitions",
}


def values_with_partitions(cluster: ClusterView) -> dict[str, ConfigValue]:
    """The configuration, with the partition counts that the internal topics really have.

    They were fixed when the topics were made; a changed setting must not move anyone to other partitions.
    """
    values = dict(cluster.config.values)
    for topic, key in _PARTITION_COUNT_KEYS.items():
        existing = cluster.partition_count(topic)
        if existing is not None:
            values[key] = existing
    return values


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
