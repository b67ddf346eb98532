"""ShareFetch (key 78): read records as a member of a share group, each locked for it, and say what became of others.

Serves versions 1-2. From 2 on a member may ask for exactly so many records, and renew its locks.
"""

from __future__ import annotations

import asyncio

from headrace.broker.requests.dispatch import Pending, RequestContext, handles
from headrace.broker.requests.rights import Operation, on_groups, on_topics
from headrace.broker.share_groups.acknowledging import Acknowledging, check_member
from headrace.broker.share_groups.fetching import ACQUIRE_MODES, ShareFetching, ShareFetchRooms
from headrace.broker.share_groups.sessions import (
    FINAL_EPOCH,
    FIRST_EPOCH,
    PartitionKey,
    SessionKey,
    ShareSession,
)
from headrace.errors import ErrorCode
from headrace.groups.share.deliveries import NotAcknowledged
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.share_fetch import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)

WAIT_MS_MAX = 300_000
"""Who wants to wait for longer is answered with nothing meanwhile, and asks again."""
_LEADER_ERRORS = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


@handles(
    ApiKey.SHARE_FETCH,
    versions=(1, 2),
    requires=(
        on_groups(Operation.READ, "group_id"),
        on_topics(Operation.READ, "topics.topic_id", conditional=True),
    ),
    only_waits=True,
)
def share_fetch(
    request: ShareFetchRequest, context: RequestContext, rooms: ShareFetchRooms
) -> ShareFetchResponse | Pending[ShareFetchResponse]:
    error = check_member(rooms.shares, request.group_id, request.member_id)
    if error is ErrorCode.NONE and context.api_version >= 2 and not _has_sense(request):
        error = ErrorCode.INVALID_REQUEST
    if error is not ErrorCode.NONE:
        return ShareFetchResponse(error_code=error)
    session = _session(rooms, context, request)
    if session is None:
        return Pending(_refuse_later(request))
    if isinstance(session, ErrorCode):
        return ShareFetchResponse(error_code=session)
    acknowledging = Acknowledging(rooms.shares, rooms.fetches.cluster, context, session.key, request.is_renew_ack)
    for topic in request.topics:
        for part in topic.partitions:
            if part.acknowledgement_batches:
                acknowledging.take((topic.topic_id, part.partition_index), part.acknowledgement_batches)
    if request.share_session_epoch == FINAL_EPOCH:
        return Pending(_close(rooms, session, acknowledging))
    fetching = None if request.is_renew_ack else ShareFetching(rooms, context, request, session)
    return Pending(_finish(rooms, context, request, session, acknowledging, fetching))


def _has_sense(request: ShareFetchRequest) -> bool:
    """Who renews locks asks for no records: while they are waited for, the locks would end again."""
    asks_for_records = request.max_wait_ms or request.min_bytes or request.max_bytes or request.max_records
    return request.share_acquire_mode in ACQUIRE_MODES and not (request.is_renew_ack and asks_for_records)


def _session(
    rooms: ShareFetchRooms, context: RequestContext, request: ShareFetchRequest
) -> ShareSession | ErrorCode | None:
    """The session of the member, with what the request changes of it; None: there are too many."""
    sessions = rooms.shares.sessions
    assert request.group_id is not None
    assert request.member_id is not None
    key = SessionKey(request.group_id, request.member_id)
    named = [(topic.topic_id, part.partition_index) for topic in request.topics for part in topic.partitions]
    if request.share_session_epoch == FIRST_EPOCH:
        if any(part.acknowledgement_batches for topic in request.topics for part in topic.partitions):
            return ErrorCode.INVALID_REQUEST
        return sessions.open(key, context.connection, named)
    session = sessions.find(key, request.share_session_epoch)
    if isinstance(session, ShareSession) and request.share_session_epoch != FINAL_EPOCH:
        forgotten = [(topic.topic_id, index) for topic in request.forgotten_topics_data for index in topic.partitions]
        session.update(named, forgotten)
    return session


async def _refuse_later(request: ShareFetchRequest) -> ShareFetchResponse:
    """Who finds no room for a session asks again, but not at once."""
    await asyncio.sleep(min(max(request.max_wait_ms, 0), WAIT_MS_MAX) / 1000)
    return ShareFetchResponse(error_code=ErrorCode.SHARE_SESSION_LIMIT_REACHED)


async def _close(rooms: ShareFetchRooms, session: ShareSession, acknowledging: Acknowledging) -> ShareFetchResponse:
    acknowledged = await acknowledging.finish()
    rooms.shares.end_session(session)
    return _response(rooms, session, {}, acknowledged)


async def _finish(
    rooms: ShareFetchRooms,
    context: RequestContext,
    request: ShareFetchRequest,
    session: ShareSession,
    acknowledging: Acknowledging,
    fetching: ShareFetching | None,
) -> ShareFetchResponse:
    found: dict[PartitionKey, PartitionData] = {}
    if fetching is not None:
        found = await fetching.finish(min(max(request.max_wait_ms, 0), WAIT_MS_MAX) / 1000)
        _name(session, found, is_first=request.share_session_epoch == FIRST_EPOCH)
    acknowledged = await acknowledging.finish()
    if found and all(data.error_code == ErrorCode.UNKNOWN_TOPIC_ID for data in found.values()) and not acknowledged:
        return ShareFetchResponse(error_code=ErrorCode.UNKNOWN_TOPIC_ID)
    response = _response(rooms, session, found, acknowledged)
    _tell_leaders(rooms, context, response)
    return response


def _name(session: ShareSession, found: dict[PartitionKey, PartitionData], *, is_first: bool) -> None:
    """The answer to the first request names all partitions; later ones those with news, and those that were added."""
    for key in list(session.partitions):
        data = found.get(key)
        if data is None and (is_first or session.partitions[key]):
            found[key] = PartitionData(partition_index=key[1], records=b"")
        # After an error it is named once more, so that the member sees that it is over.
        session.partitions[key] = data is not None and data.error_code != ErrorCode.NONE


def _response(
    rooms: ShareFetchRooms,
    session: ShareSession,
    found: dict[PartitionKey, PartitionData],
    acknowledged: dict[PartitionKey, NotAcknowledged],
) -> ShareFetchResponse:
    for key, result in acknowledged.items():
        data = found.setdefault(key, PartitionData(partition_index=key[1], records=b""))
        data.acknowledge_error_code, data.acknowledge_error_message = result
    topics: dict[bytes, ShareFetchableTopicResponse] = {}
    for (topic_id, _), data in found.items():
        if topic_id not in topics:
            topics[topic_id] = ShareFetchableTopicResponse(topic_id=topic_id, partitions=[])
        topics[topic_id].partitions.append(data)
    return ShareFetchResponse(
        acquisition_lock_timeout_ms=rooms.shares.settings(session.key.group_id).limits.lock_ms,
        responses=list(topics.values()),
    )


def _tell_leaders(rooms: ShareFetchRooms, context: RequestContext, response: ShareFetchResponse) -> None:
    """Where those are that lead what is not led here."""
    leaders: set[int] = set()
    for topic in response.responses:
        for data in topic.partitions:
            if not {data.error_code, data.acknowledge_error_code}.isdisjoint(_LEADER_ERRORS):
                name = rooms.fetches.cluster.topic_name(topic.topic_id)
                known = None if name is None else rooms.fetches.leaders.leader_and_epoch(name, data.partition_index)
                if known is not None:
                    data.current_leader = LeaderIdAndEpoch(leader_id=known[0], leader_epoch=known[1])
                    leaders.add(known[0])
    if leaders:
        response.node_endpoints = [
            NodeEndpoint(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in rooms.fetches.leaders.addresses(context.listener, leaders)
        ]
