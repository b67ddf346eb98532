"""The controller: takes a request about the cluster and decides what becomes of it. It changes nothing itself.

Each method is pure but for chance (placement, ids), which is passed in. The caller appends the records of a `Decision`
to the store, folds them into the image, and answers; as decisions are made on the image, it asks for the next one only
when that is done.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from headrace.cluster import acls, assignments, brokers, config_changes, features, leadership, quotas, security, topics
from headrace.cluster.acl_authorizer import is_authorized
from headrace.cluster.broker_config import BrokerConfig
from headrace.cluster.brokers import ProducerIdBlock, Registration
from headrace.cluster.config_changes import ConfigContext
from headrace.cluster.configs import BrokerLayers, topic_values
from headrace.cluster.decision import Decision
from headrace.cluster.image import Image
from headrace.cluster.partitions import RulesOf
from headrace.cluster.records import ConfigRecord, MetadataRecord, ResourceType
from headrace.cluster.topics import TopicContext
from headrace.config import ConfigValue, format_value
from headrace.errors import BrokerIdNotRegisteredError
from headrace.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from headrace.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from headrace.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from headrace.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from headrace.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from headrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from headrace.protocol.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from headrace.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from headrace.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from headrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from headrace.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from headrace.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from headrace.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from headrace.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from headrace.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from headrace.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse

_MIN_ISR = "min.insync.replicas"
_UNCLEAN = "unclean.leader.election.enable"

R = TypeVar("R")


class Controller:
    """Decisions on an image, with the configuration of the broker that decides."""

    def __init__(self, node_id: int, config: BrokerConfig, rng: random.Random, new_uuid: Callable[[], bytes]) -> None:
        self.node_id = node_id
        self.config = config
        self._rng = rng
        self._new_uuid = new_uuid
        #: What lets brokers log in at each other where that needs a user in the metadata.
        self.own_users: Callable[[Image], Sequence[MetadataRecord]] = lambda image: ()

    def _configs(self, image: Image) -> ConfigContext:
        return ConfigContext(image, self.config, self.node_id)

    def _topics(self, image: Image) -> TopicContext:
        return TopicContext(self._configs(image), self._rng, self._new_uuid)

    def _rules(self, image: Image) -> RulesOf:
        return leadership.rules_of(image, BrokerLayers.of(image, self.config, self.node_id))

    def bootstrap(self, image: Image) -> list[MetadataRecord]:
        """The first records of a new cluster; none where there are some already, but for the brokers' own users."""
        # Not whether there are records at all: an election leaves one, and a crash may come right after it.
        if features.METADATA_VERSION in image.features:
            return list(self.own_users(image))
        # As in Kafka: the cluster's value is kept with the cluster, not with whichever broker is asked.
        return [*features.initial_records(), self._min_isr_record(), *self.own_users(image)]

    # --- topics -------------------------------------------------------------------------------------------------------

    def create_topics(self, image: Image, request: CreateTopicsRequest) -> Decision[CreateTopicsResponse]:
        return topics.create_topics(self._topics(image), request)

    def delete_topics(self, image: Image, request: DeleteTopicsRequest, version: int) -> Decision[DeleteTopicsResponse]:
        return topics.delete_topics(self._topics(image), request, version)

    def create_partitions(self, image: Image, request: CreatePartitionsRequest) -> Decision[CreatePartitionsResponse]:
        return topics.create_partitions(self._topics(image), request)

    def internal_topic(self, image: Image, name: str) -> CreatableTopic:
        """`__consumer_offsets` or `__transaction_state`, ready to be put into a CreateTopicsRequest."""
        return topics.internal_topic(self.config, image, name)

    # --- configuration ------------------------------------------------------------------------------------------------

    def alter_configs(self, image: Image, request: AlterConfigsRequest) -> Decision[AlterConfigsResponse]:
        return self._with_elections(image, config_changes.alter(self._configs(image), request))

    def incremental_alter_configs(
        self, image: Image, request: IncrementalAlterConfigsRequest
    ) -> Decision[IncrementalAlterConfigsResponse]:
        return self._with_elections(image, config_changes.alter_incrementally(self._configs(image), request))

    def _with_elections(self, image: Image, decision: Decision[R]) -> Decision[R]:
        """Partitions that may have a leader by the new configuration get one with it, and others may be eligible."""
        names = {record.name for record in decision.records if isinstance(record, ConfigRecord)}
        if names.isdisjoint((_UNCLEAN, _MIN_ISR)):
            return decision
        after = image.copied()
        for record in decision.records:
            after.apply(record)
        if _MIN_ISR in names:
            eligible = leadership.follow_minimum(after, self._rules(image), self._rules(after))
            for record in eligible:
                after.apply(record)
            decision.records += eligible
        if _UNCLEAN in names:
            decision.records += leadership.elect_leaderless(after, self._rules(after))
        return decision

    def describe_configs(self, image: Image, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        return config_changes.describe(self._configs(image), request)

    def list_config_resources(
        self, image: Image, request: ListConfigResourcesRequest, version: int
    ) -> ListConfigResourcesResponse:
        return config_changes.list_resources(self._configs(image), request, version)

    def topic_config(self, image: Image, topic: str) -> dict[str, ConfigValue]:
        """Every topic key with the value in effect for a topic (for `LogConfig.of`)."""
        layers = BrokerLayers.of(image, self.config, self.node_id)
        return topic_values(layers, image.config(ResourceType.TOPIC, topic))

    def broker_config(self, image: Image) -> BrokerConfig:
        """The deciding broker's configuration with the dynamic values of the image; to be kept until those change."""
        own = image.config(ResourceType.BROKER, str(self.node_id))
        return self.config.with_dynamic(image.config(ResourceType.BROKER, ""), own)

    # --- leaders and replicas -----------------------------------------------------------------------------------------

    def elect_leaders(self, image: Image, request: ElectLeadersRequest) -> Decision[ElectLeadersResponse]:
        return leadership.elect_leaders(image, request, self._rules(image))

    def balance_leaders(self, image: Image) -> Decision[None]:
        return leadership.balance_leaders(image, self._rules(image))

    def alter_partition(self, image: Image, request: AlterPartitionRequest) -> Decision[AlterPartitionResponse]:
        return leadership.alter_partition(image, request, self._rules(image))

    def alter_partition_reassignments(
        self, image: Image, request: AlterPartitionReassignmentsRequest
    ) -> Decision[AlterPartitionReassignmentsResponse]:
        return leadership.alter_reassignments(image, request, self._rules(image))

    def list_partition_reassignments(
        self, image: Image, request: ListPartitionReassignmentsRequest
    ) -> ListPartitionReassignmentsResponse:
        return leadership.list_reassignments(image, request)

    # --- brokers ------------------------------------------------------------------------------------------------------

    def register_broker(
        self, image: Image, broker: Registration, *, fenced: bool = True, session_alive: bool = False
    ) -> Decision[int]:
        rules = self._rules(image)
        return brokers.register(image, broker, fenced=fenced, session_alive=session_alive, rules_of=rules)

    def fence_broker(self, image: Image, node_id: int) -> Decision[bool]:
        return brokers.fence(image, node_id, self._rules(image))

    def assign_replicas_to_dirs(
        self, image: Image, request: AssignReplicasToDirsRequest
    ) -> Decision[AssignReplicasToDirsResponse]:
        return assignments.assign_replicas(image, request, self._rules(image))

    def unfence_broker(self, image: Image, node_id: int) -> Decision[None]:
        return brokers.unfence(image, node_id, self._rules(image))

    def shut_down_broker(self, image: Image, node_id: int) -> Decision[bool]:
        return brokers.shut_down(image, node_id, self._rules(image))

    def unregister_broker(self, image: Image, request: UnregisterBrokerRequest) -> Decision[UnregisterBrokerResponse]:
        try:
            records = brokers.unregister(image, request.broker_id, self._rules(image)).records
        except BrokerIdNotRegisteredError as error:
            return Decision(UnregisterBrokerResponse(error_code=error.code, error_message=error.message))
        return Decision(UnregisterBrokerResponse(error_message=None), records)

    def allocate_producer_ids(self, image: Image, node_id: int, broker_epoch: int) -> Decision[ProducerIdBlock]:
        return brokers.allocate_producer_ids(image, node_id, broker_epoch)

    # --- the rest -----------------------------------------------------------------------------------------------------

    def update_features(self, image: Image, request: UpdateFeaturesRequest) -> Decision[UpdateFeaturesResponse]:
        decision = features.update_features(image, request)
        after = image.copied()
        for record in decision.records:
            after.apply(record)
        if features.has_eligible(after) and not features.has_eligible(image):
            decision.records += self._one_minimum(after)
        return decision

    def _one_minimum(self, image: Image) -> list[MetadataRecord]:
        """Leaders and the controller count by one `min.insync.replicas` from now on, where replicas are eligible by it.

        As in Kafka, values of single brokers go, and the cluster has one. A leader that has not heard of it commits by
        its own: until it has, it cannot let a follower go, as every partition epoch moves.
        """
        records = config_changes.one_minimum(image, self._min_isr_record())
        for record in records:
            image.apply(record)
        return records + leadership.begin_counting(image, self._rules(image))

    def _min_isr_record(self) -> ConfigRecord:
        min_isr = format_value(self.config[_MIN_ISR])
        return ConfigRecord(resource_type=ResourceType.BROKER, resource_name="", name=_MIN_ISR, value=min_isr)

    def alter_client_quotas(
        self, image: Image, request: AlterClientQuotasRequest
    ) -> Decision[AlterClientQuotasResponse]:
        return quotas.alter(image, request)

    def describe_client_quotas(
        self, image: Image, request: DescribeClientQuotasRequest
    ) -> DescribeClientQuotasResponse:
        return quotas.describe(image, request)

    def alter_user_scram_credentials(
        self, image: Image, request: AlterUserScramCredentialsRequest
    ) -> Decision[AlterUserScramCredentialsResponse]:
        return security.alter_scram(image, request)

    def describe_user_scram_credentials(
        self, image: Image, request: DescribeUserScramCredentialsRequest
    ) -> DescribeUserScramCredentialsResponse:
        return security.describe_scram(image, request)

    def describe_acls(self, image: Image, request: DescribeAclsRequest) -> DescribeAclsResponse:
        if not is_authorized(self.config):
            return security.describe_acls_without_authorizer()
        return acls.describe(map(acls.Acl.of, image.acls.values()), request)

    def create_acls(self, image: Image, request: CreateAclsRequest) -> Decision[CreateAclsResponse]:
        if not is_authorized(self.config):
            return Decision(security.create_acls_without_authorizer(request))
        return acls.create(image, request, self._new_uuid)

    def delete_acls(self, image: Image, request: DeleteAclsRequest) -> Decision[DeleteAclsResponse]:
        if not is_authorized(self.config):
            return Decision(security.delete_acls_without_authorizer(request))
        return acls.delete(image, request)
