"""Rights to groups and their offsets. Members need Read on the group; whoever looks needs Describe.

Heartbeat and LeaveGroup have no check here: what their handlers declare is all or nothing.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.authorization.checks import (
    CLUSTER_LACK,
    GROUP_LACK,
    TOPIC_LACK,
    TRANSACTIONAL_ID_LACK,
    Afterwards,
    authorized_operations,
    checks,
    on_cluster,
    on_group,
    on_topic,
    on_transactional_id,
    refused_whole,
)
from headrace.broker.authorization.records import appended, cut
from headrace.broker.handlers.find_coordinator import GROUP_KEY, SHARE_KEY, SHARE_SINCE_VERSION, TRANSACTION_KEY
from headrace.broker.handlers.sync_group import lacks_protocol
from headrace.broker.requests.dispatch import RequestContext
from headrace.broker.requests.rights import Operation, Resource
from headrace.broker.view import ClusterView
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from headrace.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from headrace.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from headrace.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from headrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from headrace.protocol.messages.sync_group import SyncGroupRequest

KEYS_SINCE_VERSION = 4
COMMIT_IDS_SINCE_VERSION = 10
FETCH_IDS_SINCE_VERSION = 10
GROUPS_SINCE_VERSION = 8
NO_OFFSET = -1


# --- coordinators -----------------------------------------------------------------------------------------------------


@checks(ApiKey.FIND_COORDINATOR)
def check_find_coordinator(cluster: ClusterView, context: RequestContext, request: FindCoordinatorRequest) -> Any:
    if context.api_version >= KEYS_SINCE_VERSION:
        refused = []
        allowed = []
        for key in request.coordinator_keys:
            error = _refuse_key(context, request.key_type, key)
            if error is None:
                allowed.append(key)
            else:
                refused.append(Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error, error_message=""))
        if not refused:
            return None
        request.coordinator_keys = allowed
        return appended("coordinators", refused)
    error = _refuse_key(context, request.key_type, request.key)
    if error is None:
        return None
    return FindCoordinatorResponse(error_code=error, error_message=error.name, node_id=-1, host="", port=-1)


def _refuse_key(context: RequestContext, key_type: int, key: str) -> ErrorCode | None:
    if key_type == GROUP_KEY:
        return None if on_group(context, Operation.DESCRIBE, key) else GROUP_LACK
    if key_type == TRANSACTION_KEY:
        return None if on_transactional_id(context, Operation.DESCRIBE, key) else TRANSACTIONAL_ID_LACK
    if key_type == SHARE_KEY and context.api_version >= SHARE_SINCE_VERSION:  # before, nobody is given one
        return None if on_cluster(context, Operation.CLUSTER_ACTION) else CLUSTER_LACK
    return None


@checks(ApiKey.JOIN_GROUP)
def check_join_group(cluster: ClusterView, context: RequestContext, request: JoinGroupRequest) -> Any:
    if on_group(context, Operation.READ, request.group_id):
        return None
    name = None if context.api_version >= 7 else ""
    return JoinGroupResponse(error_code=GROUP_LACK, protocol_name=name)


@checks(ApiKey.SYNC_GROUP)
def check_sync_group(cluster: ClusterView, context: RequestContext, request: SyncGroupRequest) -> Any:
    if lacks_protocol(request, context.api_version) or on_group(context, Operation.READ, request.group_id):
        return None
    return refused_whole(context, GROUP_LACK)


# --- looking, deleting ------------------------------------------------------------------------------------------------


@checks(ApiKey.DESCRIBE_GROUPS)
def check_describe_groups(cluster: ClusterView, context: RequestContext, request: DescribeGroupsRequest) -> Any:
    request.groups, forbidden = cut(request.groups, lambda group: on_group(context, Operation.DESCRIBE, group))
    if not (forbidden or request.include_authorized_operations):
        return None
    refused = [DescribedGroup(error_code=GROUP_LACK, group_id=group) for group in forbidden]

    def amend(response: DescribeGroupsResponse) -> DescribeGroupsResponse:
        if request.include_authorized_operations:
            for group in response.groups:
                if group.error_code == ErrorCode.NONE:
                    group.authorized_operations = authorized_operations(context, Resource.GROUP, group.group_id)
        response.groups += refused
        return response

    return Afterwards(amend)


@checks(ApiKey.LIST_GROUPS)
def check_list_groups(cluster: ClusterView, context: RequestContext, request: ListGroupsRequest) -> Any:
    if context.may_on_cluster(Operation.DESCRIBE):
        return None

    def amend(response: ListGroupsResponse) -> ListGroupsResponse:
        response.groups = [
            group for group in response.groups if context.may(Operation.DESCRIBE, Resource.GROUP, group.group_id)
        ]
        return response

    return Afterwards(amend)


@checks(ApiKey.DELETE_GROUPS)
def check_delete_groups(cluster: ClusterView, context: RequestContext, request: DeleteGroupsRequest) -> Any:
    request.groups_names, forbidden = cut(
        request.groups_names, lambda group: on_group(context, Operation.DELETE, group)
    )
    if not forbidden:
        return None
    refused = [DeletableGroupResult(group_id=group, error_code=GROUP_LACK) for group in forbidden]
    if not request.groups_names:
        return DeleteGroupsResponse(results=refused)
    return appended("results", refused)


# --- offsets ----------------------------------------------------------------------------------------------------------


@checks(ApiKey.OFFSET_COMMIT)
def check_offset_commit(cluster: ClusterView, context: RequestContext, request: OffsetCommitRequest) -> Any:
    if not on_group(context, Operation.READ, request.group_id):
        return OffsetCommitResponse(topics=[_refuse_commit(topic, GROUP_LACK) for topic in request.topics])
    by_id = context.api_version >= COMMIT_IDS_SINCE_VERSION

    def is_allowed(topic: OffsetCommitRequestTopic) -> bool:
        name = cluster.topic_name(topic.topic_id) if by_id else topic.name
        return name is None or on_topic(context, Operation.READ, name)

    allowed, forbidden = cut(request.topics, is_allowed)
    if not forbidden:
        return None
    refused = [_refuse_commit(topic, TOPIC_LACK) for topic in forbidden]
    if not allowed:
        return OffsetCommitResponse(topics=refused)
    request.topics = allowed
    return appended("topics", refused)


def _refuse_commit(topic: OffsetCommitRequestTopic, error: ErrorCode) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetCommitResponsePartition(partition_index=part.partition_index, error_code=error)
            for part in topic.partitions
        ],
    )


@checks(ApiKey.OFFSET_DELETE)
def check_offset_delete(cluster: ClusterView, context: RequestContext, request: OffsetDeleteRequest) -> Any:
    if not on_group(context, Operation.DELETE, request.group_id):
        return refused_whole(context, GROUP_LACK)
    allowed, forbidden = cut(request.topics, lambda topic: on_topic(context, Operation.READ, topic.name))
    if not forbidden:
        return None
    refused = [
        OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=[
                OffsetDeleteResponsePartition(partition_index=part.partition_index, error_code=TOPIC_LACK)
                for part in topic.partitions
            ],
        )
        for topic in forbidden
    ]
    if not allowed:
        return OffsetDeleteResponse(topics=refused)
    request.topics = allowed

    def amend(response: OffsetDeleteResponse) -> OffsetDeleteResponse:
        if response.error_code == ErrorCode.NONE:
            response.topics += refused
        return response

    return Afterwards(amend)


@checks(ApiKey.OFFSET_FETCH)
def check_offset_fetch(cluster: ClusterView, context: RequestContext, request: OffsetFetchRequest) -> Any:
    if context.api_version >= GROUPS_SINCE_VERSION:
        return _check_groups(cluster, context, request)
    if not on_group(context, Operation.DESCRIBE, request.group_id):
        # Version 1 has no place for an error but the partitions.
        return OffsetFetchResponse(
            error_code=GROUP_LACK,
            topics=[_refuse_fetch(topic, GROUP_LACK) for topic in request.topics or ()]
            if context.api_version == 1
            else [],
        )
    if request.topics is None:

        def amend(response: OffsetFetchResponse) -> OffsetFetchResponse:
            response.topics = [one for one in response.topics if _may_describe(context, one.name)]
            return response

        return Afterwards(amend)
    allowed, forbidden = cut(request.topics, lambda topic: on_topic(context, Operation.DESCRIBE, topic.name))
    if not forbidden:
        return None
    request.topics = allowed
    return appended("topics", [_refuse_fetch(topic, TOPIC_LACK) for topic in forbidden])


def _may_describe(context: RequestContext, name: str | None) -> bool:
    return name is None or context.may(Operation.DESCRIBE, Resource.TOPIC, name)


def _refuse_fetch(topic: OffsetFetchRequestTopic, error: ErrorCode) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        name=topic.name,
        partitions=[
            OffsetFetchResponsePartition(
                partition_index=index, committed_offset=NO_OFFSET, metadata="", error_code=error
            )
            for index in topic.partition_indexes
        ],
    )


def _check_groups(cluster: ClusterView, context: RequestContext, request: OffsetFetchRequest) -> Any:
    by_id = context.api_version >= FETCH_IDS_SINCE_VERSION
    allowed: list[OffsetFetchRequestGroup] = []
    refused: list[OffsetFetchResponseGroup] = []
    #: The topics that are refused in each group of those that are not.
    within: dict[str, list[OffsetFetchResponseTopics]] = {}
    of_all: set[str] = set()
    for group in request.groups:
        if not on_group(context, Operation.DESCRIBE, group.group_id):
            refused.append(OffsetFetchResponseGroup(group_id=group.group_id, error_code=GROUP_LACK))
            continue
        allowed.append(group)
        if group.topics is None:
            of_all.add(group.group_id)
            continue

        def is_allowed(topic: OffsetFetchRequestTopics) -> bool:
            name = cluster.topic_name(topic.topic_id) if by_id else topic.name
            return name is None or on_topic(context, Operation.DESCRIBE, name)

        group.topics, forbidden = cut(group.topics, is_allowed)
        if forbidden:
            within.setdefault(group.group_id, []).extend(map(_refuse_fetch_of_group, forbidden))
    if not (refused or within or of_all):
        return None
    request.groups = allowed

    def amend(response: OffsetFetchResponse) -> OffsetFetchResponse:
        for group in response.groups:
            if group.error_code != ErrorCode.NONE:
                continue
            if group.group_id in of_all:
                group.topics = [
                    topic
                    for topic in group.topics
                    if _may_describe(context, cluster.topic_name(topic.topic_id) if by_id else topic.name)
                ]
            group.topics += within.get(group.group_id, ())
        response.groups += refused
        return response

    return Afterwards(amend)


def _refuse_fetch_of_group(topic: OffsetFetchRequestTopics) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=index, committed_offset=NO_OFFSET, metadata="", error_code=TOPIC_LACK
            )
            for index in topic.partition_indexes
        ],
    )
