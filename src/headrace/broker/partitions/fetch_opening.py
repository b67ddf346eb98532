"""How a fetch begins: which partitions it is about, those that it names or those that its session remembers."""

from __future__ import annotations

from headrace.broker.partitions.fetch_sessions import (
    FINAL_EPOCH,
    FULL_EPOCH,
    NO_SESSION,
    NOT_TOLD,
    FetchSession,
    PartitionKey,
    SessionPartition,
    next_epoch,
)
from headrace.broker.partitions.fetching import TOPIC_IDS_SINCE_VERSION, Fetching, FetchRooms, replica_id
from headrace.broker.requests.dispatch import RequestContext
from headrace.errors import ErrorCode
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse


def open_fetch(rooms: FetchRooms, context: RequestContext, request: FetchRequest) -> Fetching | FetchResponse:
    """Find out which partitions this fetch is about: those it names, or those its session remembers."""
    by_id = context.api_version >= TOPIC_IDS_SINCE_VERSION
    wanted = _named_partitions(rooms, request, by_id)
    sessions = rooms.sessions
    if request.session_epoch in (FULL_EPOCH, FINAL_EPOCH):
        if request.session_id != NO_SESSION:
            sessions.remove(request.session_id)
        opens = request.session_epoch == FULL_EPOCH and context.api_version >= 7
        return Fetching(rooms, context, request, list(wanted.values()), None, opens_session=opens)
    now_ms = rooms.runtime.clock.now_ms()
    found = sessions.find(request.session_id, request.session_epoch, by_id)
    if isinstance(found, ErrorCode):
        return FetchResponse(error_code=found)
    _update_session(found, wanted, request, by_id, is_follower=replica_id(request, context.api_version) >= 0)
    rights = context.connection.rights
    found.look_again_by(None if rights is None else rights.current_key())
    sessions.touch(found, now_ms)
    if not sessions.has_room(found):
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    if not found.partitions:
        sessions.remove(found.session_id)
        return FetchResponse()
    found.epoch = next_epoch(found.epoch)
    return Fetching(rooms, context, request, [], found, opens_session=False)


def _named_partitions(rooms: FetchRooms, request: FetchRequest, by_id: bool) -> dict[PartitionKey, SessionPartition]:
    """The partitions a request names, each once (the last mention counts), in order."""
    wanted: dict[PartitionKey, SessionPartition] = {}
    for topic in request.topics:
        name = (rooms.cluster.topic_name(topic.topic_id) or "") if by_id else topic.topic
        for part in topic.partitions:
            wanted[("" if by_id else name, topic.topic_id, part.partition)] = SessionPartition(
                name,
                topic.topic_id,
                part.partition,
                part.fetch_offset,
                part.log_start_offset,
                part.partition_max_bytes,
                part.current_leader_epoch,
                part.last_fetched_epoch,
            )
    return wanted


def _update_session(
    session: FetchSession,
    wanted: dict[PartitionKey, SessionPartition],
    request: FetchRequest,
    by_id: bool,
    *,
    is_follower: bool,
) -> None:
    for key, new in wanted.items():
        session.put(key, new)
        if is_follower and new.kept is not None:
            # It may have thrown away what it was told, as an answer about an epoch or a log that was over by then.
            new.kept.told_high_watermark = NOT_TOLD
    for forgotten in request.forgotten_topics_data:
        for partition in forgotten.partitions:
            session.drop(("" if by_id else forgotten.topic, forgotten.topic_id, partition))
