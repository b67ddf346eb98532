"""Fetch (key 1): read batches from partitions.

Serves versions 4-18. Sessions from version 7 on (KIP-227), topics by id from 13 on. A read never crosses a segment, and
the first partition that has data gives at least one whole batch whatever the limits, so that no consumer gets stuck.
"""

from __future__ import annotations

from headrace.broker.metadata.fetches import MetadataFetches, is_of_metadata
from headrace.broker.partitions.fetch_at_once import fetch_at_once
from headrace.broker.partitions.fetch_opening import open_fetch
from headrace.broker.partitions.fetching import TOPIC_IDS_SINCE_VERSION, FetchRooms, replica_id
from headrace.broker.requests.dispatch import Pending, RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster, on_topics, when
from headrace.errors import ErrorCode
from headrace.log import WouldBlockError
from headrace.protocol.api import ApiKey
from headrace.protocol.common_shapes import small_fetch
from headrace.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData

_ISOLATION_LEVELS = (0, 1)
WAIT_MS_MAX = 300_000
"""Who wants to wait for longer is answered with nothing meanwhile, and asks again."""


def _is_consumer(request: FetchRequest, version: int) -> bool:
    return replica_id(request, version) < 0


def _is_follower(request: FetchRequest, version: int) -> bool:
    return replica_id(request, version) >= 0


@handles(
    ApiKey.FETCH,
    versions=(4, 18),
    requires=(
        when(_is_consumer, on_topics(Operation.READ, "topics.topic", "topics.topic_id")),
        when(_is_follower, on_cluster(Operation.CLUSTER_ACTION)),
    ),
    only_waits=True,
    at_once=fetch_at_once,
    shape=small_fetch,
)
def fetch(
    request: FetchRequest, context: RequestContext, rooms: FetchRooms, metadata: MetadataFetches | None
) -> FetchResponse | Pending[FetchResponse]:
    follower = replica_id(request, context.api_version)
    if follower >= 0 and metadata is not None and is_of_metadata(request):
        return metadata.answer(request, follower, min(request.max_wait_ms, WAIT_MS_MAX) / 1000)
    fetching = open_fetch(rooms, context, request)
    if isinstance(fetching, FetchResponse):
        return fetching
    if request.isolation_level not in _ISOLATION_LEVELS and fetching.has_something_to_read():
        return _refuse(request, ErrorCode.INVALID_REQUEST, context.api_version)
    try:
        reads = fetching.look()
        fetching.locate(reads, nowait=True)
        if fetching.is_due(reads):
            fetching.load(reads, nowait=True)
            return fetching.answer(reads)
    except WouldBlockError:
        pass  # looked at again, and then off the loop
    except BaseException:
        fetching.give_back()
        raise
    return Pending(fetching.finish(min(request.max_wait_ms, WAIT_MS_MAX) / 1000))


def _refuse(request: FetchRequest, error: ErrorCode, version: int) -> FetchResponse:
    """The same error for everything that was asked for; by id, only the request as a whole has it."""
    return FetchResponse(
        error_code=error,
        session_id=request.session_id,
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    PartitionData(partition_index=part.partition, error_code=error, high_watermark=-1, records=b"")
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
            if version < TOPIC_IDS_SINCE_VERSION
        ],
    )
