"""Proposals of a broker's leaders on their way to the controller."""

from __future__ import annotations

import pytest

from headrace.broker.replication.isr_changes import IsrChanges
from headrace.broker.replication.leader import LeaderState, Term
from headrace.broker.requests.element_bound import ELEMENTS_ALWAYS, ELEMENTS_PER_PARTITION
from headrace.protocol.codec import encode
from headrace.protocol.codegen import decoder
from headrace.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)

VERSION = AlterPartitionRequest.SCHEMA.versions.high
OWN = 1


def leader_of(members: tuple[int, ...]) -> LeaderState:
    """One whose followers are all in sync, as the controller has yet to be told of the last one."""
    term = Term(OWN, 1, 1, members, members[:-1])
    state = LeaderState(
        OWN, term, lambda node_id: 7, end_offset=0, high_watermark=0, now_ms=0.0, lag_time_max_ms=1000.0
    )
    for node_id in members[1:]:
        state.fetched(node_id, 7, 0, 0, 0, 0.0)
    return state


def answer_to(request: AlterPartitionRequest) -> AlterPartitionResponse:
    """All of it is carried out."""
    return AlterPartitionResponse(
        topics=[
            AlterPartitionResponseTopicData(
                topic_id=topic.topic_id,
                partitions=[
                    AlterPartitionResponsePartitionData(
                        partition_index=one.partition_index,
                        leader_id=OWN,
                        leader_epoch=one.leader_epoch,
                        isr=[member.broker_id for member in one.new_isr_with_epochs],
                        partition_epoch=one.partition_epoch + 1,
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


@pytest.mark.parametrize("replicas", [2, 3, 4, 6])
def test_no_request_has_more_than_the_controller_takes(replicas: int) -> None:
    """It would be refused for its size, and asked again as it is: the in-sync replicas would stay as they are."""
    changes, count = IsrChanges(), 5000
    leaders = [leader_of(tuple(range(1, replicas + 1))) for _ in range(count)]
    for number, leader in enumerate(leaders):
        proposal = leader.any_expansion(0.0)
        assert proposal is not None
        changes.propose((number.to_bytes(16, "big"), 0), leader, proposal)
    requests = 0
    while (request := changes.next_request(OWN, 7)) is not None:
        elements_max = ELEMENTS_ALWAYS + ELEMENTS_PER_PARTITION * count
        decoder(AlterPartitionRequest, VERSION)(encode(request, VERSION), 0, elements_max)
        changes.answered(answer_to(request), 0.0)
        requests += 1
    assert len(changes) == 0
    assert all(len(leader.term.isr) == replicas for leader in leaders)
    assert requests == 1 if replicas <= 3 else requests > 1
