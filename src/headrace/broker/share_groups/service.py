"""What members of share groups read of this broker: their sessions, and the share partitions that it leads."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Hashable

from headrace.broker.coordinators.share_state_service import ShareStates
from headrace.broker.partitions.leaders import Leaders
from headrace.broker.share_groups.sessions import PartitionKey, ShareSession, ShareSessions
from headrace.broker.share_groups.share_partition import SharePartition, ShareSurroundings
from headrace.broker.view import ClusterView
from headrace.cluster.changes import Changes
from headrace.cluster.features import SHARE_VERSION
from headrace.errors import ErrorCode, KafkaError, NotLeaderOrFollowerError
from headrace.groups.settings import GroupSettings
from headrace.groups.share.settings import ShareGroupSettings
from headrace.groups.share.state_records import StateKey
from headrace.runtime import Runtime


class ShareGroupService:
    """Finds the share partition of a group, and ends what is over."""

    def __init__(
        self,
        runtime: Runtime,
        cluster: ClusterView,
        leaders: Leaders,
        states: ShareStates,
        group_settings: GroupSettings,
        sessions_max: int,
    ) -> None:
        self._cluster = cluster
        self._leaders = leaders
        self._group_settings = group_settings
        self._settings: dict[str, ShareGroupSettings] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._surroundings = ShareSurroundings(runtime, states, self.settings, self._keep)
        self.sessions = ShareSessions(sessions_max)
        self._partitions: dict[StateKey, SharePartition] = {}
        self._of_group: dict[str, set[StateKey]] = {}

    @property
    def is_enabled(self) -> bool:
        """Whether the cluster has share groups: the level of `share.version`."""
        return self._cluster.image.features.get(SHARE_VERSION, 0) > 0

    def settings(self, group_id: str) -> ShareGroupSettings:
        """The settings of a group in effect."""
        found = self._settings.get(group_id)
        if found is None:
            found = ShareGroupSettings.from_values(self._group_settings.values(group_id))
            self._settings[group_id] = found
        return found

    # --- share partitions

    def find(self, group_id: str, key: PartitionKey) -> SharePartition | None:
        """The one that there is, if the group reads that partition here."""
        found = self._partitions.get(StateKey(group_id, *key))
        return found if found is not None and found.is_led else None

    def why_not_found(self, topic: str, index: int) -> ErrorCode:
        """Why there is nothing of a group to be acknowledged in a partition."""
        try:
            self._leaders.partition_here(topic, index).check_leader()
        except KafkaError as error:
            return ErrorCode(error.code)
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def get(self, group_id: str, topic: str, key: PartitionKey) -> SharePartition:
        """The one of a partition that is led here, which may have to be read first; the error where it is not led."""
        state_key = StateKey(group_id, *key)
        found = self._partitions.get(state_key)
        if found is not None:
            if found.is_led:
                return found
            found.end()
        partition = self._leaders.partition_here(topic, key[1])
        partition.check_leader()
        if not partition.leads_in(partition.leader_epoch):
            raise NotLeaderOrFollowerError(f"{topic}-{key[1]} is not led here")
        made = self._partitions[state_key] = SharePartition(self._surroundings, state_key, partition, self._forget)
        self._of_group.setdefault(group_id, set()).add(state_key)
        return made

    def _forget(self, share: SharePartition) -> None:
        if self._partitions.get(share.key) is share:
            del self._partitions[share.key]
            theirs = self._of_group[share.key.group_id]
            theirs.discard(share.key)
            if not theirs:
                del self._of_group[share.key.group_id]

    # --- sessions

    def end_session(self, session: ShareSession) -> None:
        """A member reads here no more: what it has is given back, unless a later session of it has that by now."""
        if not self.sessions.has(session):
            return
        group_id, member_id = session.key
        for key in session.partitions:
            share = self.find(group_id, key)
            if share is not None:
                share.release(member_id)
        self.sessions.remove(session.key)
        if not self.sessions.has_members(group_id):
            self._keep(self._end_unread(group_id))

    def connection_lost(self, connection: Hashable) -> None:
        for session in self.sessions.of_connection(connection):
            self.end_session(session)

    async def _end_unread(self, group_id: str) -> None:
        """Nobody reads for that group here any more: what is not in use is read again when somebody does."""
        for key in list(self._of_group.get(group_id, ())):
            share = self._partitions.get(key)
            if share is None:
                continue  # over meanwhile
            await share.settled()
            if self.sessions.has_members(group_id):
                return
            share.end()

    # --- life

    def follow(self, changes: Changes) -> None:
        """After a change of the metadata: other settings count, and what is led elsewhere is over."""
        self._settings.clear()
        if not self.is_enabled:
            for session in self.sessions.all():
                self.sessions.remove(session.key)
        for share in list(self._partitions.values()):
            if not share.is_led or not self.is_enabled:
                share.end()

    def _keep(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        for share in list(self._partitions.values()):
            share.end()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
