"""How far share groups have got in partitions, and how much they have to do: DescribeShareGroupOffsets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import NamedTuple

from headrace.broker.coordinators.share_state_service import ShareStates
from headrace.broker.coordinators.surroundings import CoordinatorSurroundings
from headrace.broker.partitions.leadership import Isolation
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.groups.share.state_records import NO_COUNT, NO_OFFSET
from headrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

log = logging.getLogger("headrace.broker.share")

NO_LAG = -1
_LATEST = -1
_ENDS_VERSION = 7


class ShareOffset(NamedTuple):
    """Where a group starts in a partition, and how many records it has to finish; -1 where that is not known."""

    start_offset: int
    leader_epoch: int
    lag: int
    error: ErrorCode


class ShareOffsets:
    def __init__(self, around: CoordinatorSurroundings, states: ShareStates) -> None:
        self._around = around
        self._cluster = around.cluster
        self._states = states

    async def describe(
        self, group_id: str, partitions: Collection[tuple[bytes, int]]
    ) -> dict[tuple[bytes, int], ShareOffset]:
        """Of partitions that exist."""
        summaries = await self._states.summaries(group_id, list(partitions))
        counted = [
            key
            for key, summary in summaries.items()
            if not summary.error_code
            and summary.start_offset != NO_OFFSET
            and summary.delivery_complete_count != NO_COUNT
        ]
        ends = await self._ends(counted)
        found = {}
        for key, summary in summaries.items():
            end = ends.get(key)
            lag = NO_LAG if end is None else max(0, end - summary.start_offset - summary.delivery_complete_count)
            error = ErrorCode(summary.error_code)
            found[key] = ShareOffset(
                NO_OFFSET if error else summary.start_offset, summary.leader_epoch if lag != NO_LAG else 0, lag, error
            )
        return found

    async def _ends(self, partitions: Collection[tuple[bytes, int]]) -> dict[tuple[bytes, int], int]:
        """Where the logs of partitions end, asked of whoever leads them; without those that nobody can tell of."""
        ends: dict[tuple[bytes, int], int] = {}
        elsewhere: dict[int, list[tuple[bytes, int]]] = {}
        for key in partitions:
            topic = self._cluster.image.topics_by_id.get(key[0])
            if topic is None or key[1] >= len(topic.partitions):
                continue
            leader = topic.partitions[key[1]].leader
            if self._around.identity.is_this(leader):
                try:
                    ends[key] = self._around.replicas.get(topic.name, key[1]).end_for(Isolation.READ_UNCOMMITTED)
                except KafkaError as error:
                    log.info("the end of %s-%d is not known: %s", topic.name, key[1], error)
            elif leader >= 0:
                elsewhere.setdefault(leader, []).append(key)
        for found in await asyncio.gather(*(self._ends_at(node_id, keys) for node_id, keys in elsewhere.items())):
            ends.update(found)
        return ends

    async def _ends_at(self, node_id: int, keys: list[tuple[bytes, int]]) -> dict[tuple[bytes, int], int]:
        names = {topic_id: self._cluster.topic_name(topic_id) or "" for topic_id, _ in keys}
        request = ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsTopic(
                    name=name,
                    partitions=[
                        ListOffsetsPartition(partition_index=index, timestamp=_LATEST)
                        for topic_id, index in keys
                        if topic_id == wanted
                    ],
                )
                for wanted, name in names.items()
            ],
        )
        try:
            response = await self._states.ask_broker(node_id, request, _ENDS_VERSION)
        except HeadraceError as error:
            log.info("broker %d did not tell where partitions end: %s", node_id, error)
            return {}
        ids = {name: topic_id for topic_id, name in names.items()}
        return {
            (ids[topic.name], part.partition_index): part.offset
            for topic in response.topics
            for part in topic.partitions
            if not part.error_code
        }
