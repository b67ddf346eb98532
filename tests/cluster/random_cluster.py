"""Random decisions on a cluster of several brokers, from a seed: for tests of what holds whatever happens."""

from __future__ import annotations

import random

from headrace.cluster.records import NO_LEADER
from headrace.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    BrokerState,
)
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from headrace.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

from .harness import OneBroker


class RandomCluster:
    """A cluster of five brokers to which one random thing after the other happens."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cluster = OneBroker({"default.replication.factor": "3"}, seed=seed)
        self.image = self.cluster.image
        self.restarts = 0
        for node_id in range(2, 6):
            self.cluster.register(node_id)

    def step(self) -> str:
        """Let something happen; what it was."""
        action = self.rng.choice(
            [self.create, self.create, self.grow, self.delete, self.configure, self.fence, self.unfence]
            + [self.restart, self.isr, self.isr, self.isr, self.reassign, self.elect, self.producer_ids]
        )
        action()
        return action.__name__

    def _topic(self) -> str:
        return self.rng.choice(list(self.image.topics) or ["none"])

    def create(self) -> None:
        configs = [CreatableTopicConfig(name="unclean.leader.election.enable", value="true")]
        topic = CreatableTopic(
            name=f"t{self.rng.randrange(40)}.{self.rng.randrange(3)}",
            num_partitions=self.rng.randint(-1, 6),
            replication_factor=self.rng.choice([-1, 1, 2, 3, 5]),
            configs=configs if self.rng.random() < 0.2 else [],
        )
        request = CreateTopicsRequest(topics=[topic], validate_only=self.rng.random() < 0.1)
        self.cluster.decide(self.cluster.controller.create_topics(self.image, request))

    def grow(self) -> None:
        topic = CreatePartitionsTopic(name=self._topic(), count=self.rng.randint(0, 9), assignments=None)
        request = CreatePartitionsRequest(topics=[topic])
        self.cluster.decide(self.cluster.controller.create_partitions(self.image, request))

    def delete(self) -> None:
        request = DeleteTopicsRequest(topic_names=[self._topic()])
        self.cluster.decide(self.cluster.controller.delete_topics(self.image, request, 5))

    def configure(self) -> None:
        change = AlterableConfig(
            name=self.rng.choice(["retention.ms", "segment.ms", "cleanup.policy", "no.such"]),
            config_operation=self.rng.randrange(4),
            value=self.rng.choice(["1", "5000", "compact", "delete"]),
        )
        resource = AlterConfigsResource(resource_type=2, resource_name=self._topic(), configs=[change])
        request = IncrementalAlterConfigsRequest(resources=[resource])
        self.cluster.decide(self.cluster.controller.incremental_alter_configs(self.image, request))

    def fence(self) -> None:
        self.cluster.decide(self.cluster.controller.fence_broker(self.image, self.rng.randint(1, 5)))

    def unfence(self) -> None:
        self.cluster.decide(self.cluster.controller.unfence_broker(self.image, self.rng.randint(1, 5)))

    def restart(self) -> None:
        self.restarts += 1
        self.cluster.register(self.rng.randint(1, 5), incarnation=self.restarts.to_bytes(16, "big"))

    def isr(self) -> None:
        topic = self.image.topics.get(self._topic())
        if topic is None:
            return
        index = self.rng.randrange(len(topic.partitions))
        partition = topic.partitions[index]
        if partition.leader == NO_LEADER:
            return
        others = [r for r in partition.replicas if r != partition.leader and self.rng.random() < 0.7]
        data = AlterPartitionRequestPartitionData(
            partition_index=index,
            leader_epoch=partition.leader_epoch - (self.rng.random() < 0.1),
            new_isr_with_epochs=[BrokerState(broker_id=node_id) for node_id in (partition.leader, *others)],
            partition_epoch=partition.partition_epoch,
        )
        request = AlterPartitionRequest(
            broker_id=partition.leader,
            broker_epoch=self.image.brokers[partition.leader].epoch,
            topics=[AlterPartitionRequestTopicData(topic_id=topic.topic_id, partitions=[data])],
        )
        self.cluster.decide(self.cluster.controller.alter_partition(self.image, request))

    def reassign(self) -> None:
        replicas = self.rng.sample(range(1, 7), self.rng.randint(1, 4)) if self.rng.random() < 0.8 else None
        partition = ReassignablePartition(partition_index=self.rng.randrange(3), replicas=replicas)
        topic = ReassignableTopic(name=self._topic(), partitions=[partition])
        request = AlterPartitionReassignmentsRequest(topics=[topic])
        self.cluster.decide(self.cluster.controller.alter_partition_reassignments(self.image, request))

    def elect(self) -> None:
        request = ElectLeadersRequest(topic_partitions=None, election_type=self.rng.randrange(2))
        self.cluster.decide(self.cluster.controller.elect_leaders(self.image, request))

    def producer_ids(self) -> None:
        epoch = self.image.brokers[1].epoch
        self.cluster.decide(self.cluster.controller.allocate_producer_ids(self.image, 1, epoch))
