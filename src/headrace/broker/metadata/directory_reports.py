"""What the controller is told of log directories: which replicas' logs cannot be used, and which can be again.

It is told until it has heard it: as long as it believes that a broker has a log, it may let the broker lead.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from headrace.broker.metadata.service import MetadataService
from headrace.broker.partitions.replicas import Replicas
from headrace.broker.view import ClusterView
from headrace.cluster.records import DIRECTORY_LOST
from headrace.errors import ErrorCode, HeadraceError
from headrace.protocol.messages.assign_replicas_to_dirs import (
    AssignedDirectory,
    AssignedPartition,
    AssignedTopic,
    AssignReplicasToDirsRequest,
)

log = logging.getLogger("headrace.broker.directories")

AGAIN_S: Final = 1.0


class DirectoryReports:
    """Tells the controller of this broker's log directories, one report at a time."""

    def __init__(self, cluster: ClusterView, metadata: MetadataService, replicas: Replicas, *, is_alone: bool) -> None:
        self._cluster = cluster
        self._metadata = metadata
        self._replicas = replicas
        self._is_alone = is_alone
        self._later: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._is_closed = False

    async def tell(self) -> None:
        """Tell what the metadata does not say yet; what could not be told is told later."""
        async with self._one_at_a_time:
            if self._is_closed:
                return  # a log failed while it was closed: the next start finds out
            if not await self._told() and self._later is None and not self._is_closed:
                self._later = asyncio.get_running_loop().create_task(self._tell_later())

    async def close(self) -> None:
        self._is_closed = True
        if self._later is not None:
            self._later.cancel()
            await asyncio.gather(self._later, return_exceptions=True)

    async def _tell_later(self) -> None:
        is_told = False
        while not is_told:
            await asyncio.sleep(AGAIN_S)
            async with self._one_at_a_time:
                is_told = await self._told()
        self._later = None

    async def _told(self) -> bool:
        """Whether there is nothing left to tell."""
        try:
            return await self._tell()
        except HeadraceError as error:
            log.error("the controller does not hear of failed log directories yet: %s", error)
        except Exception:
            # Nobody else tells it: what it does not hear of stays led by a broker that cannot.
            log.exception("failed log directories could not be told of, by a defect: please report it")
        return False

    async def _tell(self) -> bool:
        request = self._report()
        if request is None:
            return True
        response = await self._metadata.ask(self._metadata.controller.assign_replicas_to_dirs, request)
        if response.error_code == ErrorCode.KAFKA_STORAGE_ERROR and self._is_alone:
            # The metadata is in that directory too: clients are refused one by one.
            log.error("leaders of offline partitions stay as they were: the metadata cannot be written")
            return True
        if response.error_code:
            # Registered anew just now, say: then the epoch is another at the next try.
            log.warning("the controller refused to hear of directories: %s", ErrorCode(response.error_code).name)
        return not response.error_code

    def _report(self) -> AssignReplicasToDirsRequest | None:
        broker, replicas = self._cluster, self._replicas
        lost = set(replicas.offline)
        found: dict[bytes, dict[bytes, list[int]]] = {}
        for topic in broker.image.topics.values():
            for index, state in enumerate(topic.partitions):
                if broker.node_id not in state.replicas:
                    continue
                is_lost = (topic.name, index) in lost
                if is_lost == state.is_lost_at(broker.node_id):
                    continue
                directory_id = DIRECTORY_LOST if is_lost else replicas.directory_id(topic.name, index)
                if directory_id is not None:
                    found.setdefault(directory_id, {}).setdefault(topic.topic_id, []).append(index)
        if not found:
            return None
        return AssignReplicasToDirsRequest(
            broker_id=broker.node_id,
            broker_epoch=broker.broker_epoch,
            directories=[
                AssignedDirectory(
                    id=directory_id,
                    topics=[
                        AssignedTopic(
                            topic_id=topic_id,
                            partitions=[AssignedPartition(partition_index=index) for index in indexes],
                        )
                        for topic_id, indexes in topics.items()
                    ],
                )
                for directory_id, topics in found.items()
            ],
        )
