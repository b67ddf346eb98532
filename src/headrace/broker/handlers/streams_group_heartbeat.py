"""StreamsGroupHeartbeat (key 88): join a streams group with a topology, stay in it, hear which tasks to run; leave.

Serves version 0. Internal topics that the application lacks are made after the answer that says so, if the member may
create them; what goes wrong with that is told by the next answer. While the feature streams.version is at 0, or
`group.coordinator.rebalance.protocols` has no "streams", it answers UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.coordinators.group_service import GroupService
from headrace.broker.coordinators.streams_topics import StreamsTopics
from headrace.broker.requests.dispatch import Pending, RequestContext, handles
from headrace.broker.requests.rights import Operation, Resource, any_of, on_cluster, on_groups, on_topics
from headrace.broker.view import ClusterView
from headrace.cluster.acls import CLUSTER_NAME
from headrace.cluster.features import serves_streams_groups
from headrace.cluster.topic_names import INTERNAL_TOPICS, name_problem
from headrace.errors import ErrorCode
from headrace.groups.streams.topology import TopologyStatus
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)


@handles(
    ApiKey.STREAMS_GROUP_HEARTBEAT,
    versions=(0, 0),
    requires=(
        on_groups(Operation.READ, "group_id"),
        on_topics(Operation.DESCRIBE, "topology.subtopologies.source_topics", conditional=True),
        any_of(
            on_topics(Operation.CREATE, "topology.subtopologies.state_changelog_topics.name", conditional=True),
            on_cluster(Operation.CREATE, conditional=True),
        ),
    ),
)
def streams_group_heartbeat(
    request: StreamsGroupHeartbeatRequest,
    context: RequestContext,
    groups: GroupService,
    cluster: ClusterView,
    topics: StreamsTopics,
) -> Any:
    if not serves_streams_groups(cluster.image, cluster.config):
        return StreamsGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    refused = _bad_names(request)
    if refused is not None:
        return StreamsGroupHeartbeatResponse(error_code=ErrorCode.STREAMS_INVALID_TOPOLOGY, error_message=refused)
    answer: Any = groups.call(groups.coordinator.streams.heartbeat, context, request)
    if isinstance(answer, Pending):
        return Pending(_with_topics_made(answer, request, context, groups, topics))
    return _make_topics(answer, request, context, groups, topics)


async def _with_topics_made(
    answer: Pending[Any],
    request: StreamsGroupHeartbeatRequest,
    context: RequestContext,
    groups: GroupService,
    topics: StreamsTopics,
) -> StreamsGroupHeartbeatResponse:
    return _make_topics(await answer, request, context, groups, topics)


def _make_topics(
    answer: StreamsGroupHeartbeatResponse,
    request: StreamsGroupHeartbeatRequest,
    context: RequestContext,
    groups: GroupService,
    topics: StreamsTopics,
) -> StreamsGroupHeartbeatResponse:
    for status in answer.status or ():
        if status.status_code != TopologyStatus.MISSING_INTERNAL_TOPICS:
            continue
        missing = groups.coordinator.streams.topics_to_create(request.group_id)
        forbidden = [topic.name for topic in missing if not _may_create(context, topic.name)]
        if forbidden:
            status.status_detail += f"; Unauthorized to CREATE on topics {', '.join(forbidden)}."
            continue
        status.status_detail += topics.make(missing)
    return answer


def _may_create(context: RequestContext, name: str) -> bool:
    return context.may(Operation.CREATE, Resource.CLUSTER, CLUSTER_NAME) or context.may(
        Operation.CREATE, Resource.TOPIC, name
    )


def _bad_names(request: StreamsGroupHeartbeatRequest) -> str | None:
    """Why topics of these names can be none of an application's."""
    names: dict[str, None] = {}
    for one in () if request.topology is None else request.topology.subtopologies:
        for topic in (*one.repartition_source_topics, *one.state_changelog_topics):
            names[topic.name] = None
        names |= dict.fromkeys((*one.source_topics, *one.repartition_sink_topics))
    internal = [name for name in names if name in INTERNAL_TOPICS]
    if internal:
        return f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology is prohibited."
    invalid = [name for name in names if name_problem(name) is not None]
    return f"Topic names {','.join(invalid)} are not valid topic names." if invalid else None
