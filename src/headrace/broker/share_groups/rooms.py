"""What a broker needs for share groups, put together: states, share partitions, and how far groups have got."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.broker.coordinators.share_state_service import ShareStates, ShareStateService
from headrace.broker.coordinators.surroundings import CoordinatorSurroundings
from headrace.broker.metadata.service import MetadataService
from headrace.broker.share_groups.offsets import ShareOffsets
from headrace.broker.share_groups.service import ShareGroupService
from headrace.cluster.changes import Changes
from headrace.cluster.topic_names import SHARE_GROUP_STATE
from headrace.config import ConfigValue
from headrace.groups.settings import GroupSettings
from headrace.groups.share.state_coordinator import ShareStateCoordinator, StateConfig


class ShareRooms:
    def __init__(
        self,
        around: CoordinatorSurroundings,
        metadata: MetadataService,
        values: Mapping[str, ConfigValue],
        settings: GroupSettings,
    ) -> None:
        """`values` are the broker's, with the partition counts that topics really have."""
        self._image = around.cluster.image
        config = around.cluster.started_with
        coordinator = ShareStateCoordinator(StateConfig.from_values(values), self._has_partition)
        self.state_service = ShareStateService(
            around, coordinator, config.get_int("share.coordinator.write.timeout.ms")
        )
        self.state_service.prune_every(config.get_int("share.coordinator.state.topic.prune.interval.ms") / 1000)
        self.states = ShareStates(around, metadata, self.state_service)
        self.shares = ShareGroupService(
            around.runtime,
            around.cluster,
            around.leaders,
            self.states,
            settings,
            config.get_int("group.share.max.share.sessions"),
        )
        self.offsets = ShareOffsets(around, self.states)

    def _has_partition(self, topic_id: bytes, index: int) -> bool:
        topic = self._image.topics_by_id.get(topic_id)
        return topic is not None and index < len(topic.partitions)

    def lead(self) -> None:
        """Keep those states whose partition is led here."""
        self.state_service.follow(self._image.topics.get(SHARE_GROUP_STATE))

    def follow(self, changes: Changes) -> None:
        """After a change of the metadata."""
        self.shares.follow(changes)
        if changes.deleted:
            self.state_service.topics_deleted({topic.topic_id for topic in changes.deleted})

    def look_again(self) -> None:
        """Brokers have come or gone."""
        self.states.look_again()

    async def close(self) -> None:
        await self.shares.close()
        await self.state_service.close()
        await self.states.close()
