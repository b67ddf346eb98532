"""Members of share groups that speak the bare protocol, in a simulation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from headrace.errors import ErrorCode
from headrace.groups.share.state_records import StateKey
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeStateData,
    PartitionData,
)
from headrace.protocol.messages.share_acknowledge import AcknowledgePartition, AcknowledgeTopic, ShareAcknowledgeRequest
from headrace.protocol.messages.share_fetch import (
    AcknowledgementBatch,
    FetchPartition,
    FetchTopic,
    ShareFetchRequest,
)

from . import raw
from .sim import Client

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
SHARE_VERSION = 2
_RETRIED = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


def state_name(group_id: str, topic_id: bytes, partition: int) -> str:
    return StateKey(group_id, topic_id, partition).name


async def begin(
    client: Client,
    group_id: str,
    topic_id: bytes,
    start_offset: int = 0,
    client_of: Callable[[int], Client] | None = None,
) -> None:
    """Begin the state of partition 0, as the coordinator of the group would. `client_of` is for several brokers."""
    key = state_name(group_id, topic_id, 0)
    request = InitializeShareGroupStateRequest(
        group_id=group_id,
        topics=[
            InitializeStateData(
                topic_id=topic_id, partitions=[PartitionData(partition=0, state_epoch=1, start_offset=start_offset)]
            )
        ],
    )
    while True:
        found = (await client.insist(FindCoordinatorRequest(key_type=2, coordinator_keys=[key]), 6)).coordinators[0]
        if found.error_code:
            await asyncio.sleep(0.05)
            continue
        coordinator = client if client_of is None else client_of(found.node_id)
        answer = (await coordinator.insist(request, 0)).results[0].partitions[0]
        if answer.error_code == ErrorCode.NONE:
            return
        assert answer.error_code in _RETRIED, ErrorCode(answer.error_code).name
        await asyncio.sleep(0.05)


class Member:
    """Reads partition 0 of one topic, over one connection."""

    def __init__(self, client: Client, group_id: str, member_id: str, topic_id: bytes) -> None:
        self.client = client
        self.group_id, self.member_id, self.topic_id = group_id, member_id, topic_id
        self._epoch = 0

    async def fetch(
        self,
        *acknowledged: tuple[int, int, list[int]],
        wait_ms: int = 500,
        records_max: int = 500,
        epoch: int | None = None,
        is_exact: bool = False,
    ) -> Any:
        """The answer for the partition; None where there is no news of it."""
        response = await self.client.request(
            ShareFetchRequest(
                group_id=self.group_id,
                member_id=self.member_id,
                share_session_epoch=self._next(epoch),
                max_wait_ms=wait_ms,
                min_bytes=1,
                max_bytes=1 << 20,
                max_records=records_max,
                batch_size=records_max,
                share_acquire_mode=int(is_exact),
                topics=[
                    FetchTopic(
                        topic_id=self.topic_id,
                        partitions=[FetchPartition(partition_index=0, acknowledgement_batches=_batches(acknowledged))],
                    )
                ],
                forgotten_topics_data=[],
            ),
            SHARE_VERSION,
            60.0,
        )
        if response.error_code:
            return response
        return response.responses[0].partitions[0] if response.responses else None

    async def acknowledge(self, *acknowledged: tuple[int, int, list[int]], epoch: int | None = None) -> ErrorCode:
        is_renewing = any(RENEW in types for _, _, types in acknowledged)
        response = await self.client.request(
            ShareAcknowledgeRequest(
                group_id=self.group_id,
                member_id=self.member_id,
                share_session_epoch=self._next(epoch),
                is_renew_ack=is_renewing,
                topics=[
                    AcknowledgeTopic(
                        topic_id=self.topic_id,
                        partitions=[
                            AcknowledgePartition(partition_index=0, acknowledgement_batches=_batches(acknowledged))
                        ],
                    )
                ],
            ),
            SHARE_VERSION,
            60.0,
        )
        if response.error_code:
            return ErrorCode(response.error_code)
        return ErrorCode(response.responses[0].partitions[0].error_code)

    def begin_again(self, client: Client | None = None) -> None:
        """The session is gone: a new one, perhaps with another broker."""
        self._epoch = 0
        self.client = client or self.client
        self.client.close()

    def _next(self, epoch: int | None) -> int:
        if epoch is not None:
            return epoch
        self._epoch += 1
        return self._epoch - 1


def _batches(acknowledged: Sequence[tuple[int, int, list[int]]]) -> list[AcknowledgementBatch]:
    return [
        AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
        for first, last, types in acknowledged
    ]


def acquired(answer: Any) -> list[tuple[int, int, int]]:
    """First and last offset and count of deliveries of what a member got."""
    if answer is None:
        return []
    assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code).name
    return [(one.first_offset, one.last_offset, one.delivery_count) for one in answer.acquired_records]


async def write(client: Client, topic: str, *values: bytes) -> None:
    """One batch."""
    records = raw.batch(values, timestamp_ms=client.host.clock.now_ms())
    answer = await client.insist(raw.produce_request(topic, 0, records), raw.PRODUCE_VERSION)
    assert raw.produced(answer).error_code == ErrorCode.NONE
