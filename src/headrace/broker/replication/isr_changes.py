"""Proposals of this broker's leaders on their way to the controller: one request at a time, with all that waits in it.

A proposal is asked again until it is answered for good; when its leader has dropped it meanwhile (another leader epoch,
news from the controller) it is forgotten. A request without an answer may have been carried out, which is told to each
of its leaders.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from headrace.broker.replication.leader import LeaderState, Proposal, Sent, Term
from headrace.broker.requests.element_bound import ELEMENTS_ALWAYS, ELEMENTS_PER_PARTITION
from headrace.error_codes import ErrorCode
from headrace.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    BrokerState,
)

Key: TypeAlias = tuple[bytes, int]
"""A topic's id, and the number of a partition."""


class _Asked(NamedTuple):
    leader: LeaderState
    proposal: Proposal


@dataclass(slots=True)
class IsrCounts:
    """How often replicas left the in-sync ones, or came into sync, and how often the controller refused that."""

    shrinks: int = 0
    expands: int = 0
    refused: int = 0

    def copied(self) -> IsrCounts:
        return replace(self)


class IsrChanges:
    """What waits, and what is under way. No I/O: `next_request` gives what to send, the others take how it went."""

    __slots__ = ("_in_flight", "_waiting", "counts")

    def __init__(self) -> None:
        self.counts = IsrCounts()
        self._waiting: dict[Key, _Asked] = {}
        self._in_flight: dict[Key, _Asked] | None = None

    def __len__(self) -> int:
        return len(self._waiting) + len(self._in_flight or ())

    def __contains__(self, key: Key) -> bool:
        """Whether a proposal of this partition waits for the next request."""
        return key in self._waiting

    def propose(self, key: Key, leader: LeaderState, proposal: Proposal) -> None:
        self._waiting[key] = _Asked(leader, proposal)

    def next_request(self, broker_id: int, broker_epoch: int) -> AlterPartitionRequest | None:
        """What waits, as much as the controller takes in one request; None while one is under way, or with nothing to
        ask."""
        if self._in_flight is not None:
            return None
        asked = self._next()
        if not asked:
            return None
        self._in_flight = asked
        topics: dict[bytes, AlterPartitionRequestTopicData] = {}
        for (topic_id, index), (_, proposal) in asked.items():
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = AlterPartitionRequestTopicData(topic_id=topic_id, partitions=[])
            members = [
                BrokerState(broker_id=node, broker_epoch=e) for node, e in zip(proposal.isr, proposal.broker_epochs)
            ]
            topic.partitions.append(
                AlterPartitionRequestPartitionData(
                    partition_index=index,
                    leader_epoch=proposal.leader_epoch,
                    new_isr=list(proposal.isr),
                    new_isr_with_epochs=members,
                    # Nothing has to be recovered of what an unclean election left behind: the log was checked at start.
                    leader_recovery_state=0,
                    partition_epoch=proposal.partition_epoch,
                )
            )
        return AlterPartitionRequest(broker_id=broker_id, broker_epoch=broker_epoch, topics=list(topics.values()))

    def _next(self) -> dict[Key, _Asked]:
        waiting, self._waiting = self._waiting, {}
        asked: dict[Key, _Asked] = {}
        beyond = 0
        for key, one in waiting.items():
            if one.leader.pending is not one.proposal:
                continue
            # A topic, its partition and the members, of which there may be more than are taken for each partition.
            beyond += max(0, 2 + len(one.proposal.isr) - ELEMENTS_PER_PARTITION)
            if beyond <= ELEMENTS_ALWAYS:
                asked[key] = one
            else:
                self._waiting[key] = one
        return asked

    def unanswered(self) -> None:
        """Nobody knows what became of the request: its proposals are asked again."""
        for key, one in (self._in_flight or {}).items():
            self._after(key, one, one.leader.unanswered(one.proposal))
        self._in_flight = None

    def answered(self, response: AlterPartitionResponse, now_ms: float) -> list[Key]:
        """Tell every leader; gives the partitions whose watermark has moved, or may move in another way now."""
        asked, self._in_flight = self._in_flight or {}, None
        if response.error_code:
            # Of the whole request (an epoch of ours is not known yet, another broker is the controller now).
            for key, one in asked.items():
                self._after(key, one, Sent.AGAIN)
            return []
        moved = []
        for topic in response.topics:
            for data in topic.partitions:
                key = (topic.topic_id, data.partition_index)
                found = asked.pop(key, None)
                if found is not None:
                    self._settle(key, found, data, now_ms)
                    moved.append(key)
        for key, one in asked.items():
            self._after(key, one, one.leader.unanswered(one.proposal))
        return moved

    def _settle(self, key: Key, one: _Asked, data: AlterPartitionResponsePartitionData, now_ms: float) -> None:
        leader, proposal = one
        if data.error_code:
            error = ErrorCode(data.error_code)
            self.counts.refused += 1
            self._after(key, one, leader.refused(proposal, error, now_ms))
            return
        before = leader.term
        self.counts.shrinks += len(data.isr) < len(before.isr)
        self.counts.expands += len(data.isr) > len(before.isr)
        term = Term(data.leader_id, data.leader_epoch, data.partition_epoch, before.replicas, tuple(data.isr))
        leader.accepted(proposal, term, now_ms)

    def _after(self, key: Key, one: _Asked, sent: Sent) -> None:
        if sent is Sent.AGAIN and one.leader.pending is one.proposal:
            # A newer proposal of the same partition is another leader epoch's.
            self._waiting.setdefault(key, one)
