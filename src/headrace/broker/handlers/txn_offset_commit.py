"""TxnOffsetCommit (key 28): commit a group's offsets as part of a transaction; they count when it commits.

Serves versions 0-5. 3 tells the member; 4 may answer TRANSACTION_ABORTABLE; 5 adds the group to the transaction by
itself.
"""

from __future__ import annotations

import functools
from typing import Any

from headrace.broker.coordinators.group_service import GroupService
from headrace.broker.coordinators.transaction_service import TransactionService
from headrace.broker.partitions.replicas import Replicas
from headrace.broker.requests.dispatch import RequestContext, handles, settled
from headrace.broker.requests.rights import Operation, on_groups, on_topics, on_transactional_ids
from headrace.broker.view import ClusterView
from headrace.cluster.topic_names import CONSUMER_OFFSETS
from headrace.errors import ErrorCode, HeadraceError
from headrace.log import UNVERIFIED, Verification
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from headrace.records.batch import NO_SEQUENCE
from headrace.topics import TopicPartition
from headrace.transactions import OFFSETS_ADD_VERSION, QUESTIONS_MAX, offset_commit_error


@handles(
    ApiKey.TXN_OFFSET_COMMIT,
    versions=(0, 5),
    requires=(
        on_transactional_ids(Operation.WRITE, "transactional_id"),
        on_groups(Operation.READ, "group_id"),
        on_topics(Operation.READ, "topics.name"),
    ),
)
async def txn_offset_commit(
    request: TxnOffsetCommitRequest,
    context: RequestContext,
    groups: GroupService,
    transactions: TransactionService,
    cluster: ClusterView,
    replicas: Replicas,
) -> Any:
    error, guard = ErrorCode.NONE, UNVERIFIED
    if _has_offsets(cluster, request):
        error, guard = await _join(groups, transactions, replicas, context, request)
    commit = functools.partial(groups.coordinator.txn_offset_commit, refused=error)
    return await settled(groups.call(commit, context, request, guard))


def _has_offsets(cluster: ClusterView, request: TxnOffsetCommitRequest) -> bool:
    """Whether there is anything that could be committed; if not, the transaction is not asked."""
    if not request.group_id:
        return False
    for topic in request.topics:
        known = cluster.image.topics.get(topic.name)
        if known is not None and any(0 <= part.partition_index < len(known.partitions) for part in topic.partitions):
            return True
    return False


async def _join(
    groups: GroupService,
    transactions: TransactionService,
    replicas: Replicas,
    context: RequestContext,
    request: TxnOffsetCommitRequest,
) -> tuple[ErrorCode, Verification]:
    """Make sure that the group's partition is part of the transaction: the error when it is not, and a guard.

    The transaction may end while the coordinator answers, and before the offsets' turn to be written comes. With the
    guard they are refused then: nothing would ever end the transaction that they would begin. A guard that the end of
    the transaction before has made worthless says nothing of this one: the coordinator is asked again.
    """
    key = TopicPartition(CONSUMER_OFFSETS, groups.coordinator.partition_keeping(request.group_id))
    try:
        partition = replicas.get(*key)
    except HeadraceError:
        return ErrorCode.NONE, UNVERIFIED  # the group coordinator tells in its own words that it is not here
    if not partition.is_leader:
        return ErrorCode.NONE, UNVERIFIED  # so it does
    adds = context.api_version >= OFFSETS_ADD_VERSION
    error, guard = ErrorCode.NONE, None
    for _ in range(QUESTIONS_MAX):
        guard = partition.log.start_verification(request.producer_id, NO_SEQUENCE, request.producer_epoch)
        if guard is None:
            return ErrorCode.NONE, UNVERIFIED  # something of this transaction is there already
        errors = await transactions.join(
            request.transactional_id, request.producer_id, request.producer_epoch, [key], adds=adds
        )
        error = offset_commit_error(errors[key], context.api_version)
        if error or partition.log.is_verifying(guard):
            break
    return error, guard or UNVERIFIED
