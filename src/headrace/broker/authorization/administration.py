"""Rights to the cluster itself: configs, ACLs, users, quotas, replicas and their directories.

What has one error for all of it needs no check here: what its handler declares is all or nothing.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.authorization.checks import (
    CLUSTER_LACK,
    CLUSTER_WORDS,
    LACK,
    TOPIC_WORDS,
    checks,
    on_cluster,
    refused_whole,
)
from headrace.broker.authorization.records import appended
from headrace.broker.requests.dispatch import RequestContext
from headrace.broker.requests.rights import CLUSTER_NAME, Operation, Resource
from headrace.broker.view import ClusterView
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages import alter_configs, incremental_alter_configs
from headrace.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntryData,
    EntityData,
)
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from headrace.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from headrace.protocol.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from headrace.protocol.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse
from headrace.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from headrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResult
from headrace.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from headrace.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from headrace.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

_OF_TOPICS, _OF_GROUPS = 2, 32  # Kafka's codes for what configs belong to


# --- configs ----------------------------------------------------------------------------------------------------------


def _configs_of(resource_type: int, name: str) -> tuple[Resource, str]:
    """Whose rights the configs of a resource need: a topic's, a group's, and all else is the cluster's."""
    if resource_type == _OF_TOPICS:
        return Resource.TOPIC, name
    if resource_type == _OF_GROUPS:
        return Resource.GROUP, name
    return Resource.CLUSTER, CLUSTER_NAME


def _lacks_config(context: RequestContext, operation: Operation, item: Any) -> ErrorCode | None:
    resource, name = _configs_of(item.resource_type, item.resource_name)
    return None if context.is_allowed(operation, resource, name) else LACK[resource]


@checks(ApiKey.DESCRIBE_CONFIGS)
def check_describe_configs(cluster: ClusterView, context: RequestContext, request: DescribeConfigsRequest) -> Any:
    allowed, refused = [], []
    for item in request.resources:
        error = _lacks_config(context, Operation.DESCRIBE_CONFIGS, item)
        if error is None:
            allowed.append(item)
            continue
        refused.append(
            DescribeConfigsResult(
                error_code=error,
                error_message=_words(error),
                resource_type=item.resource_type,
                resource_name=item.resource_name,
                configs=[],
            )
        )
    if not refused:
        return None
    request.resources = allowed
    return appended("results", refused)


@checks(ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS)
def check_alter_configs(
    cluster: ClusterView,
    context: RequestContext,
    request: alter_configs.AlterConfigsRequest | incremental_alter_configs.IncrementalAlterConfigsRequest,
) -> Any:
    is_plain = isinstance(request, alter_configs.AlterConfigsRequest)
    module: Any = alter_configs if is_plain else incremental_alter_configs
    allowed: list[Any] = []
    refused = []
    for item in request.resources:
        error = _lacks_config(context, Operation.ALTER_CONFIGS, item)
        if error is None:
            allowed.append(item)
            continue
        refused.append(
            module.AlterConfigsResourceResponse(
                error_code=error,
                error_message=_words(error),
                resource_type=item.resource_type,
                resource_name=item.resource_name,
            )
        )
    if not refused:
        return None
    request.resources = allowed
    return appended("responses", refused)


def _words(error: ErrorCode) -> str:
    return {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: TOPIC_WORDS,
        ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    }.get(error, CLUSTER_WORDS)


# --- ACLs, users, quotas ----------------------------------------------------------------------------------------------


@checks(ApiKey.CREATE_ACLS)
def check_create_acls(cluster: ClusterView, context: RequestContext, request: CreateAclsRequest) -> Any:
    if on_cluster(context, Operation.ALTER):
        return None
    return CreateAclsResponse(
        results=[AclCreationResult(error_code=CLUSTER_LACK, error_message=CLUSTER_WORDS) for _ in request.creations]
    )


@checks(ApiKey.DELETE_ACLS)
def check_delete_acls(cluster: ClusterView, context: RequestContext, request: DeleteAclsRequest) -> Any:
    if on_cluster(context, Operation.ALTER):
        return None
    return DeleteAclsResponse(
        filter_results=[
            DeleteAclsFilterResult(error_code=CLUSTER_LACK, error_message=CLUSTER_WORDS) for _ in request.filters
        ]
    )


@checks(ApiKey.DESCRIBE_CLIENT_QUOTAS)
def check_describe_client_quotas(
    cluster: ClusterView, context: RequestContext, request: DescribeClientQuotasRequest
) -> Any:
    if on_cluster(context, Operation.DESCRIBE_CONFIGS):
        return None
    return DescribeClientQuotasResponse(error_code=CLUSTER_LACK, error_message=None, entries=None)


@checks(ApiKey.ALTER_CLIENT_QUOTAS)
def check_alter_client_quotas(cluster: ClusterView, context: RequestContext, request: AlterClientQuotasRequest) -> Any:
    if on_cluster(context, Operation.ALTER_CONFIGS):
        return None
    return AlterClientQuotasResponse(
        entries=[
            AlterClientQuotasResponseEntryData(
                error_code=CLUSTER_LACK,
                error_message=CLUSTER_WORDS,
                entity=[EntityData(entity_type=one.entity_type, entity_name=one.entity_name) for one in entry.entity],
            )
            for entry in request.entries
        ]
    )


@checks(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS)
def check_describe_user_scram_credentials(
    cluster: ClusterView, context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> Any:
    if on_cluster(context, Operation.DESCRIBE):
        return None
    nobody = DescribeUserScramCredentialsResult(user="", error_code=CLUSTER_LACK, error_message=None)
    results = [nobody for _ in request.users or ()]
    return DescribeUserScramCredentialsResponse(error_code=CLUSTER_LACK, error_message=None, results=results)


@checks(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
def check_alter_user_scram_credentials(
    cluster: ClusterView, context: RequestContext, request: AlterUserScramCredentialsRequest
) -> Any:
    if on_cluster(context, Operation.ALTER):
        return None
    users = dict.fromkeys([*(one.name for one in request.deletions), *(one.name for one in request.upsertions)])
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(user=user, error_code=CLUSTER_LACK, error_message=CLUSTER_WORDS)
            for user in users
        ]
    )


# --- replicas ---------------------------------------------------------------------------------------------------------


@checks(ApiKey.ELECT_LEADERS)
def check_elect_leaders(cluster: ClusterView, context: RequestContext, request: ElectLeadersRequest) -> Any:
    if on_cluster(context, Operation.ALTER):
        return None
    return ElectLeadersResponse(
        error_code=CLUSTER_LACK,
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    PartitionResult(partition_id=index, error_code=CLUSTER_LACK, error_message=CLUSTER_WORDS)
                    for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


@checks(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
def check_alter_partition_reassignments(
    cluster: ClusterView, context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> Any:
    if on_cluster(context, Operation.ALTER):
        return None
    return AlterPartitionReassignmentsResponse(
        error_code=CLUSTER_LACK,
        error_message=CLUSTER_WORDS,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    ReassignablePartitionResponse(
                        partition_index=part.partition_index, error_code=CLUSTER_LACK, error_message=CLUSTER_WORDS
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


@checks(ApiKey.ALTER_REPLICA_LOG_DIRS)
def check_alter_replica_log_dirs(
    cluster: ClusterView, context: RequestContext, request: AlterReplicaLogDirsRequest
) -> Any:
    if on_cluster(context, Operation.ALTER):
        return None
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=[
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=CLUSTER_LACK)
                    for index in topic.partitions
                ],
            )
            for directory in request.dirs
            for topic in directory.topics
        ]
    )


@checks(ApiKey.LIST_PARTITION_REASSIGNMENTS)
def check_list_partition_reassignments(
    cluster: ClusterView, context: RequestContext, request: ListPartitionReassignmentsRequest
) -> Any:
    if on_cluster(context, Operation.DESCRIBE):
        return None
    return ListPartitionReassignmentsResponse(
        error_code=CLUSTER_LACK,
        error_message=CLUSTER_WORDS,
        topics=[
            OngoingTopicReassignment(
                name=topic.name,
                partitions=[OngoingPartitionReassignment(partition_index=index) for index in topic.partition_indexes],
            )
            for topic in request.topics or ()
        ],
    )


@checks(ApiKey.DESCRIBE_ACLS, ApiKey.DESCRIBE_QUORUM)
def check_described(cluster: ClusterView, context: RequestContext, request: Any) -> Any:
    return None if on_cluster(context, Operation.DESCRIBE) else _refused_with_words(context)


@checks(ApiKey.UPDATE_FEATURES, ApiKey.UNREGISTER_BROKER, ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER)
def check_altered(cluster: ClusterView, context: RequestContext, request: Any) -> Any:
    return None if on_cluster(context, Operation.ALTER) else _refused_with_words(context)


def _refused_with_words(context: RequestContext) -> Any:
    response = refused_whole(context, CLUSTER_LACK)
    response.error_message = CLUSTER_WORDS
    return response
