"""Rights to topics and to the cluster's outline: Metadata, DescribeTopicPartitions, and what makes and removes topics.

Who may not describe a topic is not told whether it exists.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.authorization.checks import (
    TOPIC_LACK,
    TOPIC_WORDS,
    Afterwards,
    authorized_operations,
    checks,
    on_topic,
)
from headrace.broker.authorization.records import appended, cut
from headrace.broker.handlers.metadata import AUTO_CREATE_CHOICE_SINCE_VERSION
from headrace.broker.requests.dispatch import RequestContext
from headrace.broker.requests.rights import CLUSTER_NAME, Operation, Resource
from headrace.broker.view import ClusterView
from headrace.cluster.topic_names import is_internal, name_problem
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopicResult
from headrace.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from headrace.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.describe_cluster import DescribeClusterRequest
from headrace.protocol.messages.describe_topic_partitions import (
    AUTHORIZED_OPERATIONS_OMITTED,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseTopic,
    TopicRequest,
)
from headrace.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from headrace.protocol.schema import ZERO_UUID

DELETE_BY_ID_SINCE_VERSION = 6
NOT_TOLD = -1


# --- Metadata ---------------------------------------------------------------------------------------------------------


@checks(ApiKey.METADATA)
def check_metadata(cluster: ClusterView, context: RequestContext, request: MetadataRequest) -> Any:
    is_all = request.topics is None or (context.api_version == 0 and not request.topics)
    refused: list[MetadataResponseTopic] = []
    left_none = False
    if not is_all:
        assert request.topics is not None
        allowed = []
        for topic in request.topics:
            refusal = _refuse_metadata(cluster, context, request, topic)
            if refusal is None:
                allowed.append(topic)
            else:
                refused.append(refusal)
        # Of version 0 an empty list would ask for all topics.
        left_none = context.api_version == 0 and not allowed
        if refused:
            request.topics = allowed
    tells_topics = request.include_topic_authorized_operations
    tells_cluster = request.include_cluster_authorized_operations
    if not (is_all or refused or tells_topics or tells_cluster):
        return None

    def amend(response: MetadataResponse) -> MetadataResponse:
        topics = [] if left_none else response.topics
        if is_all:
            topics = [topic for topic in topics if _may_describe(context, topic.name)]
        if tells_topics:
            for topic in topics:  # made for this answer, as they tell operations
                if topic.name is not None:
                    topic.topic_authorized_operations = authorized_operations(context, Resource.TOPIC, topic.name)
        response.topics = topics + refused if refused else topics
        if tells_cluster:
            response.cluster_authorized_operations = _cluster_operations(context)
        return response

    return Afterwards(amend)


def _may_describe(context: RequestContext, name: str | None) -> bool:
    """Quietly: what is left out of a list was not asked for."""
    return name is None or context.may(Operation.DESCRIBE, Resource.TOPIC, name)


def _refuse_metadata(
    cluster: ClusterView, context: RequestContext, request: MetadataRequest, topic: MetadataRequestTopic
) -> MetadataResponseTopic | None:
    if topic.topic_id != ZERO_UUID:
        name = cluster.topic_name(topic.topic_id)
        if name is None or on_topic(context, Operation.DESCRIBE, name):
            return None
        # Who knows an id is not told the name.
        return MetadataResponseTopic(error_code=TOPIC_LACK, name=None, topic_id=topic.topic_id)
    name = topic.name or ""
    if on_topic(context, Operation.DESCRIBE, name):
        may_create = context.api_version < AUTO_CREATE_CHOICE_SINCE_VERSION or request.allow_auto_topic_creation
        is_new = may_create and name not in cluster.image.topics and name_problem(name) is None
        if not is_new or not cluster.config.get_bool("auto.create.topics.enable"):
            return None
        if context.may_on_cluster(Operation.CREATE) or on_topic(context, Operation.CREATE, name):
            return None
    return MetadataResponseTopic(error_code=TOPIC_LACK, name=name, is_internal=is_internal(name))


def _cluster_operations(context: RequestContext) -> int:
    if not context.may_on_cluster(Operation.DESCRIBE):
        return 0
    return authorized_operations(context, Resource.CLUSTER, CLUSTER_NAME)


@checks(ApiKey.DESCRIBE_CLUSTER)
def check_describe_cluster(cluster: ClusterView, context: RequestContext, request: DescribeClusterRequest) -> Any:
    if not request.include_cluster_authorized_operations:
        return None

    def amend(response: Any) -> Any:
        if response.error_code == ErrorCode.NONE:
            response.cluster_authorized_operations = _cluster_operations(context)
        return response

    return Afterwards(amend)


# --- DescribeTopicPartitions ------------------------------------------------------------------------------------------


@checks(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
def check_describe_topic_partitions(
    cluster: ClusterView, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> Any:
    """All topics that may be described, in pages, where none is named: only those are counted and told."""
    asked = request.topics
    refused: list[str] = []
    if asked:
        allowed, forbidden = cut(asked, lambda topic: on_topic(context, Operation.DESCRIBE, topic.name))
        cursor = request.cursor
        refused = [topic.name for topic in forbidden if cursor is None or topic.name >= cursor.topic_name]
        if not allowed and forbidden:
            return DescribeTopicPartitionsResponse(topics=list(map(_refuse_description, refused)))
        request.topics = allowed
    elif not _may_describe_all(cluster, context):
        names = [name for name in cluster.image.topics if _may_describe(context, name)]
        if request.cursor is not None:
            # It names where the last page ended; whoever may not see that topic any more goes on behind it.
            names = [name for name in names if name >= request.cursor.topic_name]
            if request.cursor.topic_name not in names:
                request.cursor = None
        if not names:
            return DescribeTopicPartitionsResponse()
        request.topics = [TopicRequest(name=name) for name in names]

    def amend(response: DescribeTopicPartitionsResponse) -> DescribeTopicPartitionsResponse:
        for topic in response.topics:
            if topic.name is not None and topic.topic_authorized_operations != AUTHORIZED_OPERATIONS_OMITTED:
                topic.topic_authorized_operations = authorized_operations(context, Resource.TOPIC, topic.name)
        response.topics += map(_refuse_description, refused)
        return response

    return Afterwards(amend)


def _may_describe_all(cluster: ClusterView, context: RequestContext) -> bool:
    return all(_may_describe(context, name) for name in cluster.image.topics)


def _refuse_description(name: str) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(error_code=TOPIC_LACK, name=name, is_internal=is_internal(name))


# --- making and removing ----------------------------------------------------------------------------------------------


@checks(ApiKey.CREATE_TOPICS)
def check_create_topics(cluster: ClusterView, context: RequestContext, request: CreateTopicsRequest) -> Any:
    refused: list[CreatableTopicResult] = []
    if not context.may_on_cluster(Operation.CREATE):
        request.topics, forbidden = cut(request.topics, lambda topic: on_topic(context, Operation.CREATE, topic.name))
        refused = [
            CreatableTopicResult(
                name=topic.name, error_code=TOPIC_LACK, error_message="Authorization failed.", configs=[]
            )
            for topic in forbidden
        ]

    def amend(response: CreateTopicsResponse) -> CreateTopicsResponse:
        for result in response.topics:
            if result.error_code == ErrorCode.NONE and not context.may(
                Operation.DESCRIBE_CONFIGS, Resource.TOPIC, result.name
            ):
                result.topic_config_error_code = TOPIC_LACK
                result.num_partitions = result.replication_factor = NOT_TOLD
                result.configs = []
        response.topics += refused
        return response

    return Afterwards(amend)


@checks(ApiKey.DELETE_TOPICS)
def check_delete_topics(cluster: ClusterView, context: RequestContext, request: DeleteTopicsRequest) -> Any:
    if context.may_on_cluster(Operation.DELETE):
        return None
    asked = [*(DeleteTopicState(name=name) for name in request.topic_names), *request.topics]
    refused: list[DeletableTopicResult] = []
    allowed = []
    for topic in asked:
        refusal = _refuse_deletion(cluster, context, topic)
        if refusal is None:
            allowed.append(topic)
        else:
            refused.append(refusal)
    if not refused:
        return None
    if context.api_version < DELETE_BY_ID_SINCE_VERSION:
        request.topic_names = [topic.name for topic in allowed if topic.name is not None]
    else:
        request.topics = allowed
    return appended("responses", refused)


def _refuse_deletion(
    cluster: ClusterView, context: RequestContext, topic: DeleteTopicState
) -> DeletableTopicResult | None:
    by_id = topic.name is None
    name = cluster.topic_name(topic.topic_id) if topic.name is None else topic.name
    if name is None or (not by_id and topic.topic_id != ZERO_UUID):
        return None  # the handler says what is wrong with it
    may_describe = on_topic(context, Operation.DESCRIBE, name)
    if may_describe and (name not in cluster.image.topics or on_topic(context, Operation.DELETE, name)):
        return None
    return DeletableTopicResult(
        name=name if may_describe or not by_id else None,
        topic_id=topic.topic_id,
        error_code=TOPIC_LACK,
        error_message=TOPIC_WORDS,
    )


@checks(ApiKey.CREATE_PARTITIONS)
def check_create_partitions(cluster: ClusterView, context: RequestContext, request: CreatePartitionsRequest) -> Any:
    request.topics, refused = cut(request.topics, lambda topic: on_topic(context, Operation.ALTER, topic.name))
    if not refused:
        return None
    return appended(
        "results",
        [CreatePartitionsTopicResult(name=topic.name, error_code=TOPIC_LACK) for topic in refused],
    )
