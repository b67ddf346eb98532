"""ShareAcknowledge (key 79): what became of records that a member of a share group had.

Serves versions 1-2. From 2 on locks can be renewed.
"""

from __future__ import annotations

from headrace.broker.partitions.leaders import Leaders
from headrace.broker.requests.dispatch import Pending, RequestContext, handles
from headrace.broker.requests.rights import Operation, on_groups, on_topics
from headrace.broker.share_groups.acknowledging import Acknowledging, check_member
from headrace.broker.share_groups.service import ShareGroupService
from headrace.broker.share_groups.sessions import FINAL_EPOCH, FIRST_EPOCH, SessionKey, ShareSession
from headrace.broker.view import ClusterView
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.share_acknowledge import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)

_LEADER_ERRORS = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


@handles(
    ApiKey.SHARE_ACKNOWLEDGE,
    versions=(1, 2),
    requires=(
        on_groups(Operation.READ, "group_id"),
        on_topics(Operation.READ, "topics.topic_id", conditional=True),
    ),
)
def share_acknowledge(
    request: ShareAcknowledgeRequest,
    context: RequestContext,
    shares: ShareGroupService,
    cluster: ClusterView,
    leaders: Leaders,
) -> ShareAcknowledgeResponse | Pending[ShareAcknowledgeResponse]:
    error = check_member(shares, request.group_id, request.member_id)
    if error is not ErrorCode.NONE:
        return ShareAcknowledgeResponse(error_code=error)
    if request.share_session_epoch == FIRST_EPOCH:
        return ShareAcknowledgeResponse(error_code=ErrorCode.INVALID_SHARE_SESSION_EPOCH)
    assert request.group_id is not None
    assert request.member_id is not None
    session = shares.sessions.find(SessionKey(request.group_id, request.member_id), request.share_session_epoch)
    if isinstance(session, ErrorCode):
        return ShareAcknowledgeResponse(error_code=session)
    acknowledging = Acknowledging(shares, cluster, context, session.key, request.is_renew_ack)
    for topic in request.topics:
        for part in topic.partitions:
            acknowledging.take((topic.topic_id, part.partition_index), part.acknowledgement_batches)
    return Pending(_finish(request, context, shares, cluster, leaders, session, acknowledging))


async def _finish(
    request: ShareAcknowledgeRequest,
    context: RequestContext,
    shares: ShareGroupService,
    cluster: ClusterView,
    leaders: Leaders,
    session: ShareSession,
    acknowledging: Acknowledging,
) -> ShareAcknowledgeResponse:
    topics: dict[bytes, ShareAcknowledgeTopicResponse] = {}
    wrong: set[int] = set()
    for (topic_id, index), (error, words) in (await acknowledging.finish()).items():
        answer = topics.get(topic_id)
        if answer is None:
            answer = topics[topic_id] = ShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=[])
        data = PartitionData(partition_index=index, error_code=error, error_message=words)
        answer.partitions.append(data)
        name = cluster.topic_name(topic_id)
        known = None if name is None or error not in _LEADER_ERRORS else leaders.leader_and_epoch(name, index)
        if known is not None:
            data.current_leader = LeaderIdAndEpoch(leader_id=known[0], leader_epoch=known[1])
            wrong.add(known[0])
    if request.share_session_epoch == FINAL_EPOCH:
        shares.end_session(session)
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=shares.settings(session.key.group_id).limits.lock_ms,
        responses=list(topics.values()),
        node_endpoints=[
            NodeEndpoint(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in leaders.addresses(context.listener, wrong)
        ],
    )
