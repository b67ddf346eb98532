"""Brokers that do everything a broker and a network may do to a request, drawn from a seed; nothing that they may not.

A request is served and not answered, cut off before or after it was served, served late (it lay unread in a connection
that the client has given up), refused before it was written, or written and answered with an error all the same. Where
they ask for a password, they do not always know it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from headrace.client.producer._sequences import NEVER_WRITTEN
from headrace.errors import ErrorCode
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from headrace.protocol.messages.end_txn import EndTxnResponse
from headrace.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from headrace.protocol.messages.init_producer_id import InitProducerIdResponse
from headrace.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from headrace.protocol.messages.sasl_handshake import SaslHandshakeResponse
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from headrace.records import Batch
from headrace.records.read import read_records

from .fake import CUT, CUT_BEFORE, SILENCE, FakeCluster

UNKNOWN_CODE = 9_999
LATE_S_MAX = 0.9
"""Shorter than every request.timeout.ms of the models: what lay unread for longer than that is gone."""
_CODES = [*(int(code) for code in ErrorCode if code not in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER))]
_NEVER_WRITTEN = frozenset(map(int, NEVER_WRITTEN))
_PASSING = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.REQUEST_TIMED_OUT,
)
_REFUSING = (
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
)


def values_of(request: Any) -> set[bytes | None]:
    data = [data for topic in request.topic_data for data in topic.partition_data]
    return {record.value for one in data for record in read_records(Batch(bytes(one.records)))}


class Faults:
    """`script` of a cluster. `later(seconds, work)` has something done later; `is_calm` ends all trouble."""

    def __init__(
        self, cluster: FakeCluster, rng: random.Random, share: float, later: Callable[[float, Callable[[], Any]], None]
    ) -> None:
        self.cluster = cluster
        self.rng = rng
        self.share = share
        self.later = later
        self.is_calm = False
        self.may_be_late = True
        self.refuses = True

    def __call__(self, node: int, name: str, request: Any) -> Any:
        rng = self.rng
        if name == "SaslHandshake":
            return SaslHandshakeResponse(mechanisms=["PLAIN"])
        if name == "SaslAuthenticate":
            refused = not self.is_calm and rng.random() < self.share / 2
            return SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED if refused else 0)
        if self.is_calm or name == "ApiVersions" or rng.random() > self.share:
            return None
        if name == "Metadata":
            return rng.choice([CUT, CUT_BEFORE, None, None])
        kind = rng.random()
        if kind < 0.5:
            return rng.choice([CUT, CUT, CUT_BEFORE, SILENCE])
        version = self.cluster.requests[-1][2]
        if name == "Produce":
            if kind < 0.65 and self.may_be_late:
                self.later(rng.random() * LATE_S_MAX, lambda: self.cluster._work(node, name, request, version))
                return CUT_BEFORE
            return self._produce(node, request, version)
        return self._coordinate(node, name, request, version)

    def _produce(self, node: int, request: Any, version: int) -> Any:
        code = self.rng.choice([*_CODES, UNKNOWN_CODE])
        if not self.refuses:
            code = self.rng.choice([ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER])
        is_written = code not in _NEVER_WRITTEN and self.rng.random() < 0.7
        if is_written:
            answer = self.cluster._work(node, "Produce", request, version)
        else:
            # A broker knows what it has written: it does not say of that that numbers are missing.
            there = {value for log in self.cluster.logs.values() for value in log.values}
            if code in _NEVER_WRITTEN and values_of(request) & there:
                return SILENCE
            answer = _refused(request)
        for topic in answer.responses:
            for one in topic.partition_responses:
                one.error_code = one.error_code or code
                one.log_start_offset = 0
        return answer

    def _coordinate(self, node: int, name: str, request: Any, version: int) -> Any:
        passes = self.rng.random() < 0.8 or not self.refuses
        code = self.rng.choice(_PASSING if passes else _REFUSING)
        if passes and self.rng.random() < 0.5:
            self.cluster._work(node, name, request, version)
        return _coordinator_error(name, request, code) or CUT


def _refused(request: Any) -> ProduceResponse:
    responses = []
    for topic in request.topic_data:
        answers = [PartitionProduceResponse(index=data.index, base_offset=-1) for data in topic.partition_data]
        responses.append(TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers))
    return ProduceResponse(responses=responses)


def _coordinator_error(name: str, request: Any, code: int) -> Any:
    if name == "EndTxn":
        return EndTxnResponse(error_code=code)
    if name == "InitProducerId":
        return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
    if name == "AddOffsetsToTxn":
        return AddOffsetsToTxnResponse(error_code=code)
    if name == "FindCoordinator":
        return FindCoordinatorResponse(coordinators=[Coordinator(key=request.coordinator_keys[0], error_code=code)])
    if name == "TxnOffsetCommit":
        topics = [
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=one.partition_index, error_code=code)
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return TxnOffsetCommitResponse(topics=topics)
    return None
