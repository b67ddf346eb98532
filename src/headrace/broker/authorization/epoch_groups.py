"""Rights to groups whose members keep an epoch: consumer groups of the newer protocol, share groups, streams groups.

Members need Read on the group, and Describe on every topic that they name; whoever looks needs Describe on the group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from headrace.broker.authorization.checks import (
    CLUSTER_LACK,
    CLUSTER_WORDS,
    GROUP_LACK,
    TOPIC_LACK,
    TOPIC_WORDS,
    Afterwards,
    authorized_operations,
    checks,
    on_cluster,
    on_group,
    on_topic,
    refused_whole,
)
from headrace.broker.authorization.records import appended, cut
from headrace.broker.requests.dispatch import RequestContext
from headrace.broker.requests.rights import Operation, Resource
from headrace.broker.view import ClusterView
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages import (
    alter_share_group_offsets as alter_offsets,
)
from headrace.protocol.messages import (
    consumer_group_describe,
    delete_share_group_state,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    share_acknowledge,
    share_fetch,
    share_group_describe,
    streams_group_describe,
    write_share_group_state,
)
from headrace.protocol.messages import (
    delete_share_group_offsets as delete_offsets,
)
from headrace.protocol.messages import (
    describe_share_group_offsets as describe_offsets,
)

GROUP_WORDS: Final = "Group authorization failed."
_HIDDEN_TOPICS: Final = "The group has described topic(s) that the client is not authorized to describe."


# --- members ----------------------------------------------------------------------------------------------------------


@checks(ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.SHARE_GROUP_HEARTBEAT)
def check_heartbeat(cluster: ClusterView, context: RequestContext, request: Any) -> Any:
    return _check_member(context, request.group_id, request.subscribed_topic_names or ())


@checks(ApiKey.STREAMS_GROUP_HEARTBEAT)
def check_streams_heartbeat(cluster: ClusterView, context: RequestContext, request: Any) -> Any:
    subtopologies = () if request.topology is None else request.topology.subtopologies
    names = [
        name
        for one in subtopologies
        for name in (
            *one.source_topics,
            *one.repartition_sink_topics,
            *(topic.name for topic in one.repartition_source_topics),
            *(topic.name for topic in one.state_changelog_topics),
        )
    ]
    refused = _check_member(context, request.group_id, names)
    if refused is not None:
        refused.status = []
    return refused


def _check_member(context: RequestContext, group: str, topics: Any) -> Any:
    if not on_group(context, Operation.READ, group):
        return refused_whole(context, GROUP_LACK)
    for name in dict.fromkeys(topics):
        if not on_topic(context, Operation.DESCRIBE, name):
            return refused_whole(context, TOPIC_LACK)
    return None


# --- looking ----------------------------------------------------------------------------------------------------------


@checks(ApiKey.CONSUMER_GROUP_DESCRIBE)
def check_describe(
    cluster: ClusterView, context: RequestContext, request: consumer_group_describe.ConsumerGroupDescribeRequest
) -> Any:
    return _check_describe(context, request, consumer_group_describe.DescribedConsumerGroup, _topics_of_consumers)


@checks(ApiKey.SHARE_GROUP_DESCRIBE)
def check_describe_share(
    cluster: ClusterView, context: RequestContext, request: share_group_describe.ShareGroupDescribeRequest
) -> Any:
    return _check_describe(context, request, share_group_describe.DescribedGroup, _topics_of_sharers)


@checks(ApiKey.STREAMS_GROUP_DESCRIBE)
def check_describe_streams(
    cluster: ClusterView, context: RequestContext, request: streams_group_describe.StreamsGroupDescribeRequest
) -> Any:
    return _check_describe(context, request, streams_group_describe.DescribedGroup, _topics_of_streams)


def _check_describe(
    context: RequestContext, request: Any, described: type[Any], topics_of: Callable[[Any], set[str]]
) -> Any:
    asked = request.group_ids
    request.group_ids, forbidden = cut(asked, lambda group: on_group(context, Operation.DESCRIBE, group))
    refused = [described(error_code=GROUP_LACK, group_id=group) for group in forbidden]

    def amend(response: Any) -> Any:
        for place, group in enumerate(response.groups):
            if group.error_code != ErrorCode.NONE:
                continue
            if not all(context.may(Operation.DESCRIBE, Resource.TOPIC, name) for name in topics_of(group)):
                response.groups[place] = described(
                    error_code=TOPIC_LACK, error_message=_HIDDEN_TOPICS, group_id=group.group_id
                )
            elif request.include_authorized_operations:
                group.authorized_operations = authorized_operations(context, Resource.GROUP, group.group_id)
        # Kafka tells first of those that it refuses.
        response.groups[:0] = refused
        return response

    return Afterwards(amend)


def _topics_of_consumers(group: consumer_group_describe.DescribedConsumerGroup) -> set[str]:
    found: set[str] = set()
    for member in group.members:
        found.update(member.subscribed_topic_names)
        for assignment in (member.assignment, member.target_assignment):
            found.update(part.topic_name for part in assignment.topic_partitions)
    return found


def _topics_of_sharers(group: share_group_describe.DescribedGroup) -> set[str]:
    found: set[str] = set()
    for member in group.members:
        found.update(member.subscribed_topic_names)
        found.update(part.topic_name for part in member.assignment.topic_partitions)
    return found


def _topics_of_streams(group: streams_group_describe.DescribedGroup) -> set[str]:
    found: set[str] = set()
    if group.topology is not None:
        for one in group.topology.subtopologies or ():
            found.update(one.source_topics, one.repartition_sink_topics)
            found.update(topic.name for topic in one.repartition_source_topics)
            found.update(topic.name for topic in one.state_changelog_topics)
    return found


# --- records of share groups ------------------------------------------------------------------------------------------


@checks(ApiKey.SHARE_FETCH)
def check_share_fetch(cluster: ClusterView, context: RequestContext, request: share_fetch.ShareFetchRequest) -> Any:
    if request.group_id is None or not request.member_id:
        return None  # the handler refuses it
    if not on_group(context, Operation.READ, request.group_id):
        return refused_whole(context, GROUP_LACK)
    request.topics, forbidden = _cut_ids(cluster, context, request.topics)
    if not forbidden:
        return None
    return appended(
        "responses",
        [
            share_fetch.ShareFetchableTopicResponse(
                topic_id=topic.topic_id,
                partitions=[
                    share_fetch.PartitionData(
                        partition_index=part.partition_index,
                        error_code=TOPIC_LACK,
                        acknowledge_error_code=TOPIC_LACK if part.acknowledgement_batches else ErrorCode.NONE,
                        records=b"",
                    )
                    for part in topic.partitions
                ],
            )
            for topic in forbidden
        ],
    )


@checks(ApiKey.SHARE_ACKNOWLEDGE)
def check_share_acknowledge(
    cluster: ClusterView, context: RequestContext, request: share_acknowledge.ShareAcknowledgeRequest
) -> Any:
    if request.group_id is None or not request.member_id:
        return None  # the handler refuses it
    if not on_group(context, Operation.READ, request.group_id):
        return refused_whole(context, GROUP_LACK)
    request.topics, forbidden = _cut_ids(cluster, context, request.topics)
    if not forbidden:
        return None
    refused = [
        share_acknowledge.ShareAcknowledgeTopicResponse(
            topic_id=topic.topic_id,
            partitions=[
                share_acknowledge.PartitionData(partition_index=part.partition_index, error_code=TOPIC_LACK)
                for part in topic.partitions
            ],
        )
        for topic in forbidden
    ]

    def amend(response: share_acknowledge.ShareAcknowledgeResponse) -> share_acknowledge.ShareAcknowledgeResponse:
        if response.error_code == ErrorCode.NONE:  # otherwise the session was looked at first
            response.responses += refused
        return response

    return Afterwards(amend)


def _cut_ids(cluster: ClusterView, context: RequestContext, topics: list[Any]) -> tuple[list[Any], list[Any]]:
    def is_allowed(topic: Any) -> bool:
        # An id that nobody has is the handler's to tell of.
        name = cluster.topic_name(topic.topic_id)
        return name is None or on_topic(context, Operation.READ, name)

    return cut(topics, is_allowed)


# --- offsets of share groups ------------------------------------------------------------------------------------------


@checks(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS)
def check_describe_offsets(
    cluster: ClusterView, context: RequestContext, request: describe_offsets.DescribeShareGroupOffsetsRequest
) -> Any:
    asked = request.groups
    request.groups, forbidden = cut(asked, lambda group: on_group(context, Operation.DESCRIBE, group.group_id))
    refused = [
        describe_offsets.DescribeShareGroupOffsetsResponseGroup(group_id=group.group_id, error_code=GROUP_LACK)
        for group in forbidden
    ]
    hidden: dict[str, list[describe_offsets.DescribeShareGroupOffsetsResponseTopic]] = {}
    wants_all = {group.group_id for group in request.groups if group.topics is None}
    for group in request.groups:
        if group.topics is not None:
            group.topics, without = cut(
                group.topics, lambda topic: on_topic(context, Operation.DESCRIBE, topic.topic_name)
            )
            hidden[group.group_id] = [_hide_offsets(topic) for topic in without]

    def amend(
        response: describe_offsets.DescribeShareGroupOffsetsResponse,
    ) -> describe_offsets.DescribeShareGroupOffsetsResponse:
        for group in response.groups:
            if group.group_id in wants_all:
                group.topics = [
                    topic for topic in group.topics if context.may(Operation.DESCRIBE, Resource.TOPIC, topic.topic_name)
                ]
            elif group.error_code == ErrorCode.NONE:
                group.topics += hidden.get(group.group_id, ())
        response.groups[:0] = refused
        return response

    return Afterwards(amend)


def _hide_offsets(
    topic: describe_offsets.DescribeShareGroupOffsetsRequestTopic,
) -> describe_offsets.DescribeShareGroupOffsetsResponseTopic:
    return describe_offsets.DescribeShareGroupOffsetsResponseTopic(
        topic_name=topic.topic_name,
        topic_id=bytes(16),
        partitions=[
            describe_offsets.DescribeShareGroupOffsetsResponsePartition(
                partition_index=index, start_offset=-1, error_code=TOPIC_LACK, error_message=TOPIC_WORDS
            )
            for index in topic.partitions
        ],
    )


@checks(ApiKey.ALTER_SHARE_GROUP_OFFSETS)
def check_alter_offsets(
    cluster: ClusterView, context: RequestContext, request: alter_offsets.AlterShareGroupOffsetsRequest
) -> Any:
    if not on_group(context, Operation.READ, request.group_id):
        return alter_offsets.AlterShareGroupOffsetsResponse(error_code=GROUP_LACK, error_message=GROUP_WORDS)
    request.topics, forbidden = cut(request.topics, lambda topic: on_topic(context, Operation.READ, topic.topic_name))
    if not forbidden:
        return None
    return appended(
        "responses",
        [
            alter_offsets.AlterShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name,
                topic_id=cluster.topic_id(topic.topic_name) or bytes(16),
                partitions=[
                    alter_offsets.AlterShareGroupOffsetsResponsePartition(
                        partition_index=part.partition_index, error_code=TOPIC_LACK, error_message=TOPIC_WORDS
                    )
                    for part in topic.partitions
                ],
            )
            for topic in forbidden
        ],
    )


@checks(ApiKey.DELETE_SHARE_GROUP_OFFSETS)
def check_delete_offsets(
    cluster: ClusterView, context: RequestContext, request: delete_offsets.DeleteShareGroupOffsetsRequest
) -> Any:
    if not on_group(context, Operation.DELETE, request.group_id):
        return delete_offsets.DeleteShareGroupOffsetsResponse(error_code=GROUP_LACK, error_message=GROUP_WORDS)
    request.topics, forbidden = cut(request.topics, lambda topic: on_topic(context, Operation.READ, topic.topic_name))
    if not forbidden:
        return None
    refused = [
        delete_offsets.DeleteShareGroupOffsetsResponseTopic(
            topic_name=topic.topic_name, topic_id=bytes(16), error_code=TOPIC_LACK, error_message=TOPIC_WORDS
        )
        for topic in forbidden
    ]

    def amend(response: delete_offsets.DeleteShareGroupOffsetsResponse) -> Any:
        if response.error_code == ErrorCode.NONE:  # otherwise the group was looked at first
            response.responses += refused
        return response

    return Afterwards(amend)


# --- the state of share groups, between brokers -----------------------------------------------------------------------

_STATE: Final[dict[ApiKey, Any]] = {
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: (initialize_share_group_state, "InitializeStateResult"),
    ApiKey.READ_SHARE_GROUP_STATE: (read_share_group_state, "ReadStateResult"),
    ApiKey.WRITE_SHARE_GROUP_STATE: (write_share_group_state, "WriteStateResult"),
    ApiKey.DELETE_SHARE_GROUP_STATE: (delete_share_group_state, "DeleteStateResult"),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: (read_share_group_state_summary, "ReadStateSummaryResult"),
}


@checks(*_STATE)
def check_share_state(cluster: ClusterView, context: RequestContext, request: Any) -> Any:
    if on_cluster(context, Operation.CLUSTER_ACTION):
        return None
    messages, result = _STATE[context.api_key]
    return context.route.handler.response_class(
        results=[
            getattr(messages, result)(
                topic_id=topic.topic_id,
                partitions=[
                    messages.PartitionResult(
                        partition=part.partition, error_code=CLUSTER_LACK, error_message=CLUSTER_WORDS
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
