"""Administration of any Kafka: `Admin` blocks, `AsyncAdmin` (`headrace.aio.Admin`) is awaited; both do the same.

with headrace.Admin({"bootstrap.servers": "localhost:9092"}) as admin:
    admin.create_topics([NewTopic("events", num_partitions=3)]).all()
    admin.within(5).describe_groups(["readers"])["readers"].state

Operations on several items give `Results`: `results[item]` is the item's value or raises its error, `all()` gives every
value or raises the first error. Operations with one result give it, or raise. What may pass (a coordinator that moves,
a leader election, a lost connection) is tried again until `default.api.timeout.ms` (or `within`) is over; then the
error is a `RequestTimedOutError` that says what the last answer was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TypeVar, Unpack

from headrace.client.admin import cluster, configs, groups, reset, security, share_groups, topics, transactions
from headrace.client.admin.cluster import TopicPartitionReplica
from headrace.client.admin.configs import Config
from headrace.client.admin.core import Context, Results
from headrace.client.admin.drivers import AsyncRunner, BlockingRunner, admin_config
from headrace.client.admin.groups import GroupOffsets
from headrace.client.admin.keywords import AdminKeywords
from headrace.client.admin.reset import ResetError, ResetTo
from headrace.client.admin.types import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AclResourceType,
    AlterConfigOp,
    ClientQuotaEntity,
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ConfigSynonym,
    CreatedTopic,
    ElectionType,
    FeatureMetadata,
    FeatureUpdate,
    FinalizedVersionRange,
    GroupDescription,
    GroupListing,
    ListOffsetsResultInfo,
    LogDirDescription,
    MemberDescription,
    NewPartitions,
    NewTopic,
    OpenTransaction,
    OpType,
    PartitionReassignment,
    PatternType,
    ProducerState,
    ReplicaInfo,
    ResetOffset,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    ShareGroupDescription,
    ShareGroupOffset,
    ShareMemberDescription,
    TopicDescription,
    TopicListing,
    TopicPartitionInfo,
    TransactionDescription,
    TransactionListing,
    UpgradeType,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from headrace.client.flows import Flow, async_method, method
from headrace.client.offsets import OffsetAndMetadata, OffsetSpec
from headrace.config import ConfigType
from headrace.net.node import Node
from headrace.runtime import Runtime

__all__ = [
    "AclBinding",
    "AclBindingFilter",
    "AclOperation",
    "AclPermissionType",
    "AclResourceType",
    "Admin",
    "AlterConfigOp",
    "AsyncAdmin",
    "ClientQuotaEntity",
    "ClusterDescription",
    "Config",
    "ConfigEntry",
    "ConfigResource",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigType",
    "CreatedTopic",
    "ElectionType",
    "FeatureMetadata",
    "FeatureUpdate",
    "FinalizedVersionRange",
    "GroupDescription",
    "GroupListing",
    "GroupOffsets",
    "ListOffsetsResultInfo",
    "LogDirDescription",
    "MemberDescription",
    "NewPartitions",
    "NewTopic",
    "Node",
    "OffsetAndMetadata",
    "OffsetSpec",
    "OpType",
    "OpenTransaction",
    "PartitionReassignment",
    "PatternType",
    "ProducerState",
    "ReplicaInfo",
    "ResetError",
    "ResetOffset",
    "ResetTo",
    "ResourceType",
    "Results",
    "ScramCredentialInfo",
    "ScramMechanism",
    "ShareGroupDescription",
    "ShareGroupOffset",
    "ShareMemberDescription",
    "TopicDescription",
    "TopicListing",
    "TopicPartitionInfo",
    "TopicPartitionReplica",
    "TransactionDescription",
    "TransactionListing",
    "UpgradeType",
    "UserScramCredentialDeletion",
    "UserScramCredentialUpsertion",
]


R = TypeVar("R")


class Admin:
    """Administration that blocks. Any thread may call it, one at a time. Configuration by Kafka's names."""

    def __init__(self, config: Mapping[str, Any] | None = None, **keywords: Unpack[AdminKeywords]) -> None:
        values = admin_config(config, keywords)
        self._runner = BlockingRunner(values)
        self._timeout_ms: float = values["default.api.timeout.ms"]

    def within(self, timeout: float) -> Admin:
        """This Admin, the same connections, with another time limit per operation, in seconds."""
        other = object.__new__(Admin)
        other._runner, other._timeout_ms = self._runner, timeout * 1000
        return other

    def _run_flow(self, operation: Callable[[Context], Flow[R]], /) -> R:
        return self._runner.run(operation, self._timeout_ms)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._runner.close()

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    create_topics = method(topics.create_topics)
    delete_topics = method(topics.delete_topics)
    list_topics = method(topics.list_topics)
    describe_topics = method(topics.describe_topics)
    create_partitions = method(topics.create_partitions)
    delete_records = method(topics.delete_records)
    list_offsets = method(topics.list_offsets)
    describe_configs = method(configs.describe_configs)
    incremental_alter_configs = method(configs.incremental_alter_configs)
    list_config_resources = method(configs.list_config_resources)
    list_groups = method(groups.list_groups)
    describe_groups = method(groups.describe_groups)
    delete_groups = method(groups.delete_groups)
    remove_members = method(groups.remove_members)
    list_group_offsets = method(groups.list_group_offsets)
    list_partition_offsets = method(groups.list_partition_offsets)
    alter_group_offsets = method(groups.alter_group_offsets)
    delete_group_offsets = method(groups.delete_group_offsets)
    reset_group_offsets = method(reset.reset_group_offsets)
    describe_share_groups = method(share_groups.describe_share_groups)
    list_share_group_offsets = method(share_groups.list_share_group_offsets)
    alter_share_group_offsets = method(share_groups.alter_share_group_offsets)
    delete_share_group_offsets = method(share_groups.delete_share_group_offsets)
    describe_cluster = method(cluster.describe_cluster)
    unregister_broker = method(cluster.unregister_broker)
    describe_features = method(cluster.describe_features)
    update_features = method(cluster.update_features)
    describe_log_dirs = method(cluster.describe_log_dirs)
    alter_replica_log_dirs = method(cluster.alter_replica_log_dirs)
    elect_leaders = method(cluster.elect_leaders)
    alter_partition_reassignments = method(cluster.alter_partition_reassignments)
    list_partition_reassignments = method(cluster.list_partition_reassignments)
    describe_producers = method(transactions.describe_producers)
    list_transactions = method(transactions.list_transactions)
    describe_transactions = method(transactions.describe_transactions)
    find_hanging_transactions = method(transactions.find_hanging_transactions)
    abort_transaction = method(transactions.abort_transaction)
    fence_producers = method(transactions.fence_producers)
    describe_acls = method(security.describe_acls)
    create_acls = method(security.create_acls)
    delete_acls = method(security.delete_acls)
    describe_user_scram_credentials = method(security.describe_user_scram_credentials)
    alter_user_scram_credentials = method(security.alter_user_scram_credentials)
    describe_client_quotas = method(security.describe_client_quotas)
    alter_client_quotas = method(security.alter_client_quotas)


class AsyncAdmin:
    """Administration that is awaited; any number of operations may be under way. Configuration by Kafka's names."""

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        runtime: Runtime | None = None,
        **keywords: Unpack[AdminKeywords],
    ) -> None:
        values = admin_config(config, keywords)
        self._runner = AsyncRunner(values, runtime)
        self._timeout_ms: float = values["default.api.timeout.ms"]

    def within(self, timeout: float) -> AsyncAdmin:
        """This Admin, the same connections, with another time limit per operation, in seconds."""
        other = object.__new__(AsyncAdmin)
        other._runner, other._timeout_ms = self._runner, timeout * 1000
        return other

    async def _run_flow(self, operation: Callable[[Context], Flow[R]], /) -> R:
        return await self._runner.run(operation, self._timeout_ms)

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        await self._runner.close()

    async def __aenter__(self) -> AsyncAdmin:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    create_topics = async_method(topics.create_topics)
    delete_topics = async_method(topics.delete_topics)
    list_topics = async_method(topics.list_topics)
    describe_topics = async_method(topics.describe_topics)
    create_partitions = async_method(topics.create_partitions)
    delete_records = async_method(topics.delete_records)
    list_offsets = async_method(topics.list_offsets)
    describe_configs = async_method(configs.describe_configs)
    incremental_alter_configs = async_method(configs.incremental_alter_configs)
    list_config_resources = async_method(configs.list_config_resources)
    list_groups = async_method(groups.list_groups)
    describe_groups = async_method(groups.describe_groups)
    delete_groups = async_method(groups.delete_groups)
    remove_members = async_method(groups.remove_members)
    list_group_offsets = async_method(groups.list_group_offsets)
    list_partition_offsets = async_method(groups.list_partition_offsets)
    alter_group_offsets = async_method(groups.alter_group_offsets)
    delete_group_offsets = async_method(groups.delete_group_offsets)
    reset_group_offsets = async_method(reset.reset_group_offsets)
    describe_share_groups = async_method(share_groups.describe_share_groups)
    list_share_group_offsets = async_method(share_groups.list_share_group_offsets)
    alter_share_group_offsets = async_method(share_groups.alter_share_group_offsets)
    delete_share_group_offsets = async_method(share_groups.delete_share_group_offsets)
    describe_cluster = async_method(cluster.describe_cluster)
    unregister_broker = async_method(cluster.unregister_broker)
    describe_features = async_method(cluster.describe_features)
    update_features = async_method(cluster.update_features)
    describe_log_dirs = async_method(cluster.describe_log_dirs)
    alter_replica_log_dirs = async_method(cluster.alter_replica_log_dirs)
    elect_leaders = async_method(cluster.elect_leaders)
    alter_partition_reassignments = async_method(cluster.alter_partition_reassignments)
    list_partition_reassignments = async_method(cluster.list_partition_reassignments)
    describe_producers = async_method(transactions.describe_producers)
    list_transactions = async_method(transactions.list_transactions)
    describe_transactions = async_method(transactions.describe_transactions)
    find_hanging_transactions = async_method(transactions.find_hanging_transactions)
    abort_transaction = async_method(transactions.abort_transaction)
    fence_producers = async_method(transactions.fence_producers)
    describe_acls = async_method(security.describe_acls)
    create_acls = async_method(security.create_acls)
    delete_acls = async_method(security.delete_acls)
    describe_user_scram_credentials = async_method(security.describe_user_scram_credentials)
    alter_user_scram_credentials = async_method(security.alter_user_scram_credentials)
    describe_client_quotas = async_method(security.describe_client_quotas)
    alter_client_quotas = async_method(security.alter_client_quotas)
