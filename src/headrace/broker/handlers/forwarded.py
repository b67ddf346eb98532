"""API keys whose requests only go to where they are decided: a row each, with the versions that are served.

A coordinator is given the request by its service, which writes what it decides. What the controller decides is made
true, here or where it is (`MetadataService.decide`); what it describes follows from this broker's image.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.broker.coordinators.group_service import GroupService
from headrace.broker.coordinators.share_state_service import ShareStateService
from headrace.broker.coordinators.transaction_service import TransactionService
from headrace.broker.metadata.controller_requests import ControllerRequests
from headrace.broker.metadata.service import MetadataService
from headrace.broker.metadata.voters import refuse_voter
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.handler import HandlerFunction
from headrace.broker.requests.rights import (
    NOTHING,
    Operation,
    any_of,
    of_configs,
    on_cluster,
    on_groups,
    on_topics,
    on_transactional_ids,
    when,
)
from headrace.broker.security.tokens import DelegationTokens
from headrace.broker.view import ClusterView
from headrace.cluster.controller import Controller
from headrace.groups import GroupCoordinator
from headrace.groups.share.state_coordinator import ShareStateCoordinator
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.add_raft_voter import AddRaftVoterResponse
from headrace.protocol.messages.remove_raft_voter import RemoveRaftVoterResponse
from headrace.transactions import TransactionCoordinator

# --- to whom


def _groups(method: Callable[..., Any]) -> HandlerFunction:
    name = method.__name__

    def call(request: Any, context: RequestContext, groups: GroupService) -> Any:
        return groups.call(getattr(groups.coordinator, name), context, request)

    return call


def _transactions(method: Callable[..., Any]) -> HandlerFunction:
    name = method.__name__

    def call(request: Any, context: RequestContext, transactions: TransactionService) -> Any:
        return transactions.call(getattr(transactions.coordinator, name), context, request)

    return call


def _share_states(method: Callable[..., Any]) -> HandlerFunction:
    name = method.__name__

    def call(request: Any, context: RequestContext, states: ShareStateService) -> Any:
        return states.call(getattr(states.coordinator, name), context, request)

    return call


def _decided(method: Callable[..., Any]) -> HandlerFunction:
    name = method.__name__

    async def decide(request: Any, context: RequestContext, metadata: MetadataService) -> Any:
        return await metadata.decide(getattr(metadata.controller, name), request, context=context)

    return decide


def _described(method: Callable[..., Any], *, by_version: bool = False) -> HandlerFunction:
    name = method.__name__

    def describe(request: Any, context: RequestContext, metadata: MetadataService) -> Any:
        version = (context.api_version,) if by_version else ()
        return getattr(metadata.controller, name)(metadata.image, request, *version)

    return describe


def _controller(method: Callable[..., Any]) -> HandlerFunction:
    name = method.__name__

    async def ask(request: Any, context: RequestContext, requests: ControllerRequests) -> Any:
        return await getattr(requests, name)(request)

    return ask


def _tokens(method: Callable[..., Any]) -> HandlerFunction:
    name = method.__name__

    async def decide(request: Any, context: RequestContext, tokens: DelegationTokens, metadata: MetadataService) -> Any:
        return await getattr(tokens, name)(context, request, metadata)

    return decide


def _described_tokens(request: Any, context: RequestContext, tokens: DelegationTokens) -> Any:
    return tokens.describe(context, request)


def _no_voters(response_class: Callable[[], Any]) -> HandlerFunction:
    def refuse(request: Any, context: RequestContext, cluster: ClusterView) -> Any:
        return refuse_voter(response_class(), request.cluster_id, cluster.cluster_id)

    return refuse


def _is_idempotent_only(request: Any, version: int) -> bool:
    return request.transactional_id is None


def _comes_from_a_client(request: Any, version: int) -> bool:
    return version < 4


def _comes_from_a_broker(request: Any, version: int) -> bool:
    return version >= 4


_BETWEEN_BROKERS = (on_cluster(Operation.CLUSTER_ACTION),)
_OF_TRANSACTIONAL_ID = on_transactional_ids(Operation.WRITE, "transactional_id")

# --- groups, classic and others

# How far a group has read. 10 names topics by id.
handles(
    ApiKey.OFFSET_COMMIT,
    versions=(2, 10),
    requires=(on_groups(Operation.READ, "group_id"), on_topics(Operation.READ, "topics.name", "topics.topic_id")),
)(_groups(GroupCoordinator.offset_commit))
# 8 asks for several groups at once; 10 names topics by id.
handles(
    ApiKey.OFFSET_FETCH,
    versions=(1, 10),
    requires=(
        on_groups(Operation.DESCRIBE, "group_id", "groups.group_id"),
        on_topics(Operation.DESCRIBE, "topics.name", "groups.topics.name", "groups.topics.topic_id"),
    ),
    each_once=True,
)(_groups(GroupCoordinator.offset_fetch))
# A member is alive, and hears of a rebalance.
handles(ApiKey.HEARTBEAT, versions=(0, 4), requires=(on_groups(Operation.READ, "group_id"),))(
    _groups(GroupCoordinator.heartbeat)
)
# Members leave at once instead of being missed later. From 3 on several at a time, static ones by their instance id.
handles(ApiKey.LEAVE_GROUP, versions=(0, 5), requires=(on_groups(Operation.READ, "group_id"),))(
    _groups(GroupCoordinator.leave_group)
)
handles(ApiKey.DESCRIBE_GROUPS, versions=(0, 6), requires=(on_groups(Operation.DESCRIBE, "groups"),), each_once=True)(
    _groups(GroupCoordinator.describe_groups)
)
# Those that this broker coordinates. 4 filters by state, 5 by type.
handles(
    ApiKey.LIST_GROUPS,
    versions=(0, 5),
    requires=(
        any_of(on_cluster(Operation.DESCRIBE, conditional=True), on_groups(Operation.DESCRIBE, conditional=True)),
    ),
)(_groups(GroupCoordinator.list_groups))
# Forgets committed offsets of topics that a group does not subscribe to.
handles(
    ApiKey.OFFSET_DELETE,
    versions=(0, 0),
    requires=(on_groups(Operation.DELETE, "group_id"), on_topics(Operation.READ, "topics.name")),
)(_groups(GroupCoordinator.offset_delete))

# --- transactions

# An id and epoch for an idempotent or transactional producer. Without a transactional id every call gives a new id with
# epoch 0; with one it fences whoever used that id before.
handles(
    ApiKey.INIT_PRODUCER_ID,
    versions=(0, 5),
    requires=(
        _OF_TRANSACTIONAL_ID,
        any_of(
            when(_is_idempotent_only, on_cluster(Operation.IDEMPOTENT_WRITE)),
            on_topics(Operation.WRITE, conditional=True),
        ),
    ),
)(_transactions(TransactionCoordinator.init_producer_id))
# 4 and 5 are spoken between brokers, several transactions at a time.
handles(
    ApiKey.ADD_PARTITIONS_TO_TXN,
    versions=(0, 5),
    requires=(
        when(_comes_from_a_client, on_transactional_ids(Operation.WRITE, "v3_and_below_transactional_id")),
        when(_comes_from_a_client, on_topics(Operation.WRITE, "v3_and_below_topics.name")),
        when(_comes_from_a_broker, on_cluster(Operation.CLUSTER_ACTION)),
    ),
)(_transactions(TransactionCoordinator.add_partitions_to_txn))
handles(
    ApiKey.ADD_OFFSETS_TO_TXN,
    versions=(0, 4),
    requires=(_OF_TRANSACTIONAL_ID, on_groups(Operation.READ, "group_id")),
)(_transactions(TransactionCoordinator.add_offsets_to_txn))
# 5 ends it in the newer protocol, which answers with the epoch to go on with.
handles(ApiKey.END_TXN, versions=(0, 5), requires=(_OF_TRANSACTIONAL_ID,))(
    _transactions(TransactionCoordinator.end_txn)
)
handles(
    ApiKey.DESCRIBE_TRANSACTIONS,
    versions=(0, 0),
    requires=(
        on_transactional_ids(Operation.DESCRIBE, "transactional_ids"),
        on_topics(Operation.DESCRIBE, conditional=True),
    ),
    each_once=True,
)(_transactions(TransactionCoordinator.describe_transactions))

# --- states of share groups, asked for by leaders of partitions and coordinators of groups

handles(ApiKey.INITIALIZE_SHARE_GROUP_STATE, versions=(0, 0), requires=_BETWEEN_BROKERS)(
    _share_states(ShareStateCoordinator.initialize)
)
handles(ApiKey.READ_SHARE_GROUP_STATE, versions=(0, 0), requires=_BETWEEN_BROKERS)(
    _share_states(ShareStateCoordinator.read)
)
handles(ApiKey.WRITE_SHARE_GROUP_STATE, versions=(0, 1), requires=_BETWEEN_BROKERS)(
    _share_states(ShareStateCoordinator.write)
)
handles(ApiKey.DELETE_SHARE_GROUP_STATE, versions=(0, 0), requires=_BETWEEN_BROKERS)(
    _share_states(ShareStateCoordinator.delete)
)
handles(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, versions=(0, 1), requires=_BETWEEN_BROKERS)(
    _share_states(ShareStateCoordinator.summary)
)

# --- the controller

handles(ApiKey.ALTER_CLIENT_QUOTAS, versions=(0, 1), requires=(on_cluster(Operation.ALTER_CONFIGS),))(
    _decided(Controller.alter_client_quotas)
)
handles(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, versions=(0, 0), requires=(on_cluster(Operation.ALTER),))(
    _decided(Controller.alter_user_scram_credentials)
)
# Raises or lowers the finalized level of a feature.
handles(ApiKey.UPDATE_FEATURES, versions=(0, 2), requires=(on_cluster(Operation.ALTER),))(
    _decided(Controller.update_features)
)
# Forgets a broker that will not come back.
handles(ApiKey.UNREGISTER_BROKER, versions=(0, 0), requires=(on_cluster(Operation.ALTER),))(
    _decided(Controller.unregister_broker)
)
# Where each value comes from, too. 1 tells sources and synonyms; 3 types and documentation.
handles(ApiKey.DESCRIBE_CONFIGS, versions=(1, 4), requires=of_configs(Operation.DESCRIBE_CONFIGS), each_once=True)(
    _described(Controller.describe_configs)
)
# Which resources have a dynamic configuration.
handles(ApiKey.LIST_CONFIG_RESOURCES, versions=(0, 1), requires=(on_cluster(Operation.DESCRIBE_CONFIGS),))(
    _described(Controller.list_config_resources, by_version=True)
)
handles(ApiKey.DESCRIBE_CLIENT_QUOTAS, versions=(0, 1), requires=(on_cluster(Operation.DESCRIBE_CONFIGS),))(
    _described(Controller.describe_client_quotas)
)
# Which users have credentials, never the credentials.
handles(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, versions=(0, 0), requires=(on_cluster(Operation.DESCRIBE),))(
    _described(Controller.describe_user_scram_credentials)
)
handles(ApiKey.LIST_PARTITION_REASSIGNMENTS, versions=(0, 0), requires=(on_cluster(Operation.DESCRIBE),))(
    _described(Controller.list_partition_reassignments)
)
# What brokers ask on their own account: to be registered, to go on, to stop, for producer ids.
handles(ApiKey.BROKER_REGISTRATION, versions=(0, 4), requires=_BETWEEN_BROKERS, between_brokers=True)(
    _controller(ControllerRequests.register)
)
handles(ApiKey.BROKER_HEARTBEAT, versions=(0, 1), requires=_BETWEEN_BROKERS, between_brokers=True)(
    _controller(ControllerRequests.heartbeat)
)
handles(ApiKey.ALLOCATE_PRODUCER_IDS, versions=(0, 0), requires=_BETWEEN_BROKERS, between_brokers=True)(
    _controller(ControllerRequests.allocate_producer_ids)
)
# There is no quorum of KRaft whose voters could change.
handles(ApiKey.ADD_RAFT_VOTER, versions=(0, 1), requires=(on_cluster(Operation.ALTER),))(
    _no_voters(AddRaftVoterResponse)
)
handles(ApiKey.REMOVE_RAFT_VOTER, versions=(0, 0), requires=(on_cluster(Operation.ALTER),))(
    _no_voters(RemoveRaftVoterResponse)
)

# --- delegation tokens

# For oneself or, with CreateTokens on the user, for another.
handles(ApiKey.CREATE_DELEGATION_TOKEN, versions=(1, 3), requires=NOTHING)(_tokens(DelegationTokens.create))
# Its owner and its renewers may.
handles(ApiKey.RENEW_DELEGATION_TOKEN, versions=(1, 2), requires=NOTHING)(_tokens(DelegationTokens.renew))
handles(ApiKey.EXPIRE_DELEGATION_TOKEN, versions=(1, 2), requires=NOTHING)(_tokens(DelegationTokens.expire))
# One's own, those that one may renew, and those that rights show.
handles(ApiKey.DESCRIBE_DELEGATION_TOKEN, versions=(1, 3), requires=NOTHING)(_described_tokens)
