"""Decisions that recordings of one broker do not show: several brokers, configured defaults, limits, security."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from headrace.cluster.broker_config import BrokerConfig
from headrace.cluster.brokers import LED_FIRST_FROM, PRODUCER_ID_BLOCK_SIZE, Registration
from headrace.cluster.features import ELIGIBLE_LEADER_REPLICAS_VERSION, SUPPORTED_FEATURES
from headrace.cluster.image import Endpoint, Image
from headrace.cluster.records import (
    DIRECTORY_LOST,
    NO_LEADER,
    ConfigRecord,
    FeatureLevelRecord,
    NoOpRecord,
    ResourceType,
)
from headrace.cluster.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.error_codes import ErrorCode
from headrace.errors import (
    BrokerIdNotRegisteredError,
    DuplicateBrokerRegistrationError,
    StaleBrokerEpochError,
    UnsupportedVersionError,
)
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
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from headrace.protocol.messages.assign_replicas_to_dirs import (
    AssignedDirectory,
    AssignedPartition,
    AssignedTopic,
    AssignReplicasToDirsRequest,
)
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from headrace.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest
from headrace.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from headrace.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.unregister_broker import UnregisterBrokerRequest
from headrace.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

from .harness import LISTENER, OneBroker, create


def three_brokers(given: dict[str, str] | None = None) -> OneBroker:
    cluster = OneBroker(given)
    for node_id in (2, 3):
        cluster.epochs[node_id] = cluster.register(node_id)
    return cluster


def ask_isr(cluster: OneBroker, name: str, isr: list[int], **changes: int) -> int:
    """The leader of partition 0 asks for these in-sync replicas; the error it is answered with."""
    topic = cluster.image.topics[name]
    partition = topic.partitions[0]
    data = AlterPartitionRequestPartitionData(
        partition_index=0,
        leader_epoch=partition.leader_epoch + changes.get("leader_epoch", 0),
        partition_epoch=partition.partition_epoch + changes.get("partition_epoch", 0),
        new_isr_with_epochs=[
            BrokerState(broker_id=node_id, broker_epoch=changes.get(f"epoch_of_{node_id}", -1)) for node_id in isr
        ],
    )
    node_id = changes.get("broker_id", partition.leader)
    request = AlterPartitionRequest(
        broker_id=node_id,
        broker_epoch=cluster.image.brokers[node_id].epoch + changes.get("broker_epoch", 0),
        topics=[AlterPartitionRequestTopicData(topic_id=topic.topic_id, partitions=[data])],
    )
    answer = cluster.decide(cluster.controller.alter_partition(cluster.image, request))
    if answer.error_code:
        return int(answer.error_code)
    code: int = answer.topics[0].partitions[0].error_code
    return code


# --- leaders and replicas ---------------------------------------------------------------------------------------------


def tell_directory(cluster: OneBroker, node_id: int, directory: bytes, *partitions: tuple[str, int]) -> list[int]:
    """A broker tells in which directory its replicas are; the errors that it is answered with."""
    topics = []
    for name, index in partitions:
        known = cluster.image.topics.get(name)
        topic_id = b"?" * 16 if known is None else known.topic_id
        topics.append(AssignedTopic(topic_id=topic_id, partitions=[AssignedPartition(partition_index=index)]))
    request = AssignReplicasToDirsRequest(
        broker_id=node_id,
        broker_epoch=cluster.image.brokers[node_id].epoch,
        directories=[AssignedDirectory(id=directory, topics=topics)],
    )
    answer = cluster.decide(cluster.controller.assign_replicas_to_dirs(cluster.image, request))
    assert answer.error_code == ErrorCode.NONE
    return [topic.partitions[0].error_code for topic in answer.directories[0].topics]


def test_partitions_in_a_failed_directory_are_led_by_others_or_by_no_one() -> None:
    cluster = three_brokers()
    create(cluster, "t", [[1, 2, 3], [1, 2, 3]])
    create(cluster, "u", [[1]])
    create(cluster, "v", [[2]])
    lost = [("t", 0), ("u", 0), ("gone", 0), ("t", 7), ("v", 0)]
    assert tell_directory(cluster, 1, DIRECTORY_LOST, *lost) == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ]
    shared, other = cluster.image.topics["t"].partitions
    (alone,) = cluster.image.topics["u"].partitions
    assert (shared.leader, shared.isr, shared.leader_epoch) == (2, (2, 3), 1)
    # Only this one has all records: it leads again when its directory is back.
    assert (alone.leader, alone.isr, alone.eligible, alone.leader_epoch) == (-1, (), (1,), 1)
    assert (other.leader, other.leader_epoch) == (1, 0)


@pytest.mark.parametrize("has_eligible", [True, False])
def test_a_live_broker_is_not_elected_for_what_its_failed_directory_held(has_eligible: bool) -> None:
    cluster = three_brokers()
    if not has_eligible:
        cluster.append([FeatureLevelRecord(name=ELIGIBLE_LEADER_REPLICAS_VERSION, feature_level=0)])
    create(cluster, "t", [[1, 2]])
    cluster.decide(cluster.controller.fence_broker(cluster.image, 2))
    tell_directory(cluster, 1, DIRECTORY_LOST, ("t", 0))
    assert cluster.image.topics["t"].partitions[0].leader == NO_LEADER
    # Whatever lets the controller look again: a replica that is back, an election that is asked for, a restart.
    cluster.decide(cluster.controller.unfence_broker(cluster.image, 2))
    assert cluster.image.topics["t"].partitions[0].leader == NO_LEADER
    elect = ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="t", partitions=[0])])
    cluster.decide(cluster.controller.elect_leaders(cluster.image, elect))
    unclean = ElectLeadersRequest(election_type=1, topic_partitions=elect.topic_partitions)
    cluster.decide(cluster.controller.elect_leaders(cluster.image, unclean))
    assert cluster.image.topics["t"].partitions[0].leader != 1
    cluster.decide(cluster.controller.fence_broker(cluster.image, 2))
    cluster.decide(cluster.controller.balance_leaders(cluster.image))
    cluster.register(1, incarnation=b"again" + bytes(11))
    assert cluster.image.topics["t"].partitions[0].leader == NO_LEADER


def test_who_asks_for_what_is_so_is_given_a_partition_epoch_of_its_own() -> None:
    """What was asked for before, and arrives later, is refused then."""
    cluster = three_brokers()
    create(cluster, "t", [[2, 1]])
    before = cluster.image.topics["t"].partitions[0]
    assert ask_isr(cluster, "t", [2, 1]) == ErrorCode.NONE
    after = cluster.image.topics["t"].partitions[0]
    assert (after.isr, after.leader, after.leader_epoch) == (before.isr, before.leader, before.leader_epoch)
    assert after.partition_epoch == before.partition_epoch + 1
    assert ask_isr(cluster, "t", [2], partition_epoch=-1) == ErrorCode.INVALID_UPDATE_VERSION


@pytest.mark.parametrize(
    ("isr", "changes", "error"),
    [
        ([2, 1], {"broker_epoch": -1}, ErrorCode.STALE_BROKER_EPOCH),
        ([2, 1], {"broker_epoch": 1}, ErrorCode.STALE_BROKER_EPOCH),
        ([2, 1], {"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ([2, 1], {"leader_epoch": 1}, ErrorCode.NOT_CONTROLLER),
        ([2, 1], {"partition_epoch": -1}, ErrorCode.INVALID_UPDATE_VERSION),
        ([2, 1], {"partition_epoch": 1}, ErrorCode.NOT_CONTROLLER),
        ([1, 2], {"broker_id": 1}, ErrorCode.INVALID_REQUEST),
        ([1], {}, ErrorCode.INVALID_REQUEST),
        ([2, 3], {}, ErrorCode.INVALID_REQUEST),
        ([2, 1, 1], {}, ErrorCode.INVALID_REQUEST),
        ([2, 1], {"epoch_of_1": 0}, ErrorCode.INELIGIBLE_REPLICA),
        ([2, 1], {"epoch_of_1": 1_000}, ErrorCode.INELIGIBLE_REPLICA),
        ([2, 1], {"epoch_of_2": 0}, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_what_a_leader_asks_for_with_old_or_wrong_epochs_is_refused_and_changes_nothing(
    isr: list[int], changes: dict[str, int], error: ErrorCode
) -> None:
    """KIP-497, KIP-841, KIP-903: of a former leader, of a former life of a member, or for who is none of them."""
    cluster = three_brokers()
    create(cluster, "t", [[2, 1]])
    cluster.register(1, incarnation=b"again" + bytes(11))
    # Its leader epoch and that of the partition are above 0, so that there are earlier ones.
    assert ask_isr(cluster, "t", [2]) == ErrorCode.NONE
    cluster.decide(cluster.controller.fence_broker(cluster.image, 2))
    cluster.decide(cluster.controller.unfence_broker(cluster.image, 2))
    before = cluster.image.topics["t"].partitions[0]
    assert (before.leader, before.isr) == (2, (2,))
    assert ask_isr(cluster, "t", isr, **changes) == error
    assert cluster.image.topics["t"].partitions[0] == before
    epochs = {f"epoch_of_{node_id}": cluster.image.brokers[node_id].epoch for node_id in (1, 2)}
    assert ask_isr(cluster, "t", [2, 1], **epochs) == ErrorCode.NONE


@pytest.mark.parametrize(("stopped_in", "is_clean"), [(0, True), (-1, False), (None, False)])
def test_a_broker_that_was_stopped_cleanly_in_an_earlier_life_alone_may_lack_records(
    stopped_in: int | None, is_clean: bool
) -> None:
    """KIP-966: the mark of a clean stop counts for the life that made it; None: there is none."""
    cluster = three_brokers()
    create(cluster, "t", [[1, 2]], min_insync_replicas="2")
    former = cluster.image.brokers[2].epoch
    cluster.register(2, incarnation=b"again" + bytes(11))
    assert ask_isr(cluster, "t", [1, 2]) == ErrorCode.NONE
    cluster.decide(cluster.controller.fence_broker(cluster.image, 2))
    latest = cluster.image.brokers[2].epoch
    epoch = -1 if stopped_in is None else latest if stopped_in == 0 else former
    back = Registration(2, b"third" + bytes(11), cluster.image.brokers[2].listeners, stopped_in_epoch=epoch)
    cluster.decide(cluster.controller.register_broker(cluster.image, back, fenced=True))
    assert (2 in cluster.image.topics["t"].partitions[0].eligible) == is_clean


def test_a_fenced_replica_is_not_let_in_and_one_that_is_shutting_down_neither() -> None:
    cluster = three_brokers()
    create(cluster, "t", [[2, 1, 3]])
    cluster.decide(cluster.controller.fence_broker(cluster.image, 1))
    cluster.decide(cluster.controller.shut_down_broker(cluster.image, 3))
    assert cluster.image.topics["t"].partitions[0].isr == (2,)
    assert ask_isr(cluster, "t", [2, 1]) == ErrorCode.INELIGIBLE_REPLICA
    assert ask_isr(cluster, "t", [2, 3]) == ErrorCode.INELIGIBLE_REPLICA


def test_a_replica_is_not_in_sync_while_its_directory_is_lost_and_leads_again_after() -> None:
    cluster = three_brokers()
    directory = b"d" * 16
    broker = Registration(1, b"\x07" * 16, cluster.image.brokers[1].listeners, directories=[directory])
    cluster.decide(cluster.controller.register_broker(cluster.image, broker, fenced=False))
    create(cluster, "t", [[2, 1]])
    create(cluster, "u", [[1]])
    tell_directory(cluster, 1, DIRECTORY_LOST, ("t", 0), ("u", 0))
    assert ask_isr(cluster, "t", [2, 1]) == ErrorCode.INELIGIBLE_REPLICA
    # A directory that the broker does not have is as good as a failed one.
    assert tell_directory(cluster, 1, b"other dir id 16b", ("t", 0), ("u", 0)) == [ErrorCode.NONE] * 2
    assert cluster.image.topics["u"].partitions[0].leader == NO_LEADER
    tell_directory(cluster, 1, directory, ("t", 0), ("u", 0))
    assert ask_isr(cluster, "t", [2, 1]) == ErrorCode.NONE
    alone = cluster.image.topics["u"].partitions[0]
    assert (alone.leader, alone.isr, alone.eligible) == (1, (1,), ())


def test_replicas_that_were_eligible_lead_when_there_are_none_any_more() -> None:
    cluster = three_brokers()
    create(cluster, "t", [[1, 2]], min_insync_replicas="2")
    for node_id in (1, 2):
        cluster.decide(cluster.controller.fence_broker(cluster.image, node_id))
    assert not cluster.image.topics["t"].partitions[0].isr
    cluster.append([FeatureLevelRecord(name=ELIGIBLE_LEADER_REPLICAS_VERSION, feature_level=0)])
    cluster.decide(cluster.controller.unfence_broker(cluster.image, 1))
    partition = cluster.image.topics["t"].partitions[0]
    assert (partition.leader, partition.isr, partition.eligible, partition.recovering) == (1, (1,), (), False)


def test_what_a_broker_led_is_led_by_others_before_the_rest_where_it_is_much() -> None:
    cluster = three_brokers()
    create(cluster, "many", [[1 + index % 3, 1 + (index + 1) % 3, 1 + (index + 2) % 3] for index in range(1800)])
    partitions = cluster.image.topics["many"].partitions
    led = [index for index, partition in enumerate(partitions) if partition.leader == 1]
    assert len(led) > LED_FIRST_FROM
    assert cluster.decide(cluster.controller.fence_broker(cluster.image, 1)) is False, "something is left"
    assert not cluster.image.brokers[1].fenced
    for index, partition in enumerate(partitions):
        assert partition.leader in (2, 3)
        assert (1 in partition.isr) is (index not in led)
    assert cluster.decide(cluster.controller.fence_broker(cluster.image, 1)) is True
    assert cluster.image.brokers[1].fenced
    assert all(1 not in partition.isr and partition.leader in (2, 3) for partition in partitions)
    again = cluster.controller.fence_broker(cluster.image, 1)
    assert again.response is True
    assert not again.records


def test_a_fenced_leader_is_replaced_from_the_in_sync_replicas_and_gets_back_by_preferred_election() -> None:
    cluster = three_brokers()
    create(cluster, "t", [[1, 2, 3]])
    cluster.decide(cluster.controller.fence_broker(cluster.image, 1))
    partition = cluster.image.topics["t"].partitions[0]
    assert (partition.leader, partition.isr, partition.leader_epoch) == (2, (2, 3), 1)
    cluster.decide(cluster.controller.unfence_broker(cluster.image, 1))
    elect = ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="t", partitions=[0])])
    answer = cluster.decide(cluster.controller.elect_leaders(cluster.image, elect))
    assert answer.replica_election_results[0].partition_result[0].error_code == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert ask_isr(cluster, "t", [2, 3, 1]) == ErrorCode.NONE
    cluster.decide(cluster.controller.elect_leaders(cluster.image, elect))
    partition = cluster.image.topics["t"].partitions[0]
    assert (partition.leader, partition.leader_epoch) == (1, 2)


def test_the_last_in_sync_replica_stays_eligible_and_only_it_may_lead_again() -> None:
    cluster = three_brokers()
    create(cluster, "t", [[1, 2]])
    for node_id in (1, 2):
        cluster.decide(cluster.controller.fence_broker(cluster.image, node_id))
    partition = cluster.image.topics["t"].partitions[0]
    assert (partition.leader, partition.isr, partition.eligible) == (NO_LEADER, (), (2,))
    cluster.decide(cluster.controller.unfence_broker(cluster.image, 1))
    assert cluster.image.topics["t"].partitions[0].leader == NO_LEADER
    cluster.decide(cluster.controller.unfence_broker(cluster.image, 2))
    assert cluster.image.topics["t"].partitions[0].leader == 2


def test_eligible_replicas_are_not_forgotten_while_a_partition_waits_for_them() -> None:
    cluster = three_brokers()
    create(cluster, "t", [[1, 2]])
    for node_id in (1, 2):
        cluster.decide(cluster.controller.fence_broker(cluster.image, node_id))
    safe, unsafe = 2, 3
    assert set_level(cluster, ELIGIBLE_LEADER_REPLICAS_VERSION, 0, safe) == ErrorCode.INVALID_UPDATE_VERSION
    cluster.decide(cluster.controller.unfence_broker(cluster.image, 2))
    assert set_level(cluster, ELIGIBLE_LEADER_REPLICAS_VERSION, 0, safe) == ErrorCode.NONE
    assert set_level(cluster, ELIGIBLE_LEADER_REPLICAS_VERSION, 1, 1) == ErrorCode.NONE
    cluster.decide(cluster.controller.fence_broker(cluster.image, 2))
    assert set_level(cluster, ELIGIBLE_LEADER_REPLICAS_VERSION, 0, unsafe) == ErrorCode.NONE


def test_an_unclean_election_needs_to_be_allowed_and_is_marked() -> None:
    cluster = three_brokers()
    create(cluster, "t", [[1, 2]], unclean_leader_election_enable="true")
    for node_id in (2, 1):
        cluster.decide(cluster.controller.fence_broker(cluster.image, node_id))
    cluster.decide(cluster.controller.unfence_broker(cluster.image, 2))
    partition = cluster.image.topics["t"].partitions[0]
    assert (partition.leader, partition.isr, partition.recovering) == (2, (2,), True)


@pytest.mark.parametrize(
    ("isr", "changes", "code"),
    [
        ([1], {}, ErrorCode.NONE),
        ([1, 2], {"leader_epoch": 1}, ErrorCode.NOT_CONTROLLER),
        ([1, 2], {"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ([1, 2], {"partition_epoch": -1}, ErrorCode.INVALID_UPDATE_VERSION),
        ([1, 2], {"broker_id": 2}, ErrorCode.INVALID_REQUEST),
        ([2], {}, ErrorCode.INVALID_REQUEST),
        ([1, 9], {}, ErrorCode.INVALID_REQUEST),
        ([1, 1], {}, ErrorCode.INVALID_REQUEST),
        ([1, 3], {}, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_what_a_leader_may_ask_for(isr: list[int], changes: dict[str, int], code: ErrorCode) -> None:
    cluster = three_brokers()
    create(cluster, "t", [[1, 2, 3]])
    cluster.decide(cluster.controller.fence_broker(cluster.image, 3))
    assert ask_isr(cluster, "t", isr, **changes) == code


def test_a_reassignment_adds_waits_and_then_removes() -> None:
    cluster = three_brokers()
    create(cluster, "t", [[1, 2]])
    move = ReassignablePartition(partition_index=0, replicas=[3, 2])
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=[move])])
    cluster.decide(cluster.controller.alter_partition_reassignments(cluster.image, request))
    partition = cluster.image.topics["t"].partitions[0]
    assert (partition.replicas, partition.adding, partition.removing) == ((3, 2, 1), (3,), (1,))
    ongoing = cluster.controller.list_partition_reassignments(cluster.image, ListPartitionReassignmentsRequest())
    assert [topic.name for topic in ongoing.topics] == ["t"]
    # Broker 1 leads until 3 is in sync; then it is no replica any more, and hears that another one leads.
    assert ask_isr(cluster, "t", [1, 2, 3]) == ErrorCode.NEW_LEADER_ELECTED
    partition = cluster.image.topics["t"].partitions[0]
    assert (partition.replicas, partition.isr, partition.leader) == ((3, 2), (2, 3), 3)
    assert not partition.is_reassigning
    assert partition.leader_epoch == 1


def test_a_reassignment_that_is_called_off_leaves_things_as_they_were() -> None:
    cluster = three_brokers()
    create(cluster, "t", [[1, 2]])
    for replicas in ([3, 2], None):
        move = ReassignablePartition(partition_index=0, replicas=replicas)
        request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=[move])])
        cluster.decide(cluster.controller.alter_partition_reassignments(cluster.image, request))
    partition = cluster.image.topics["t"].partitions[0]
    assert (set(partition.replicas), partition.adding, partition.removing) == ({1, 2}, (), ())
    assert partition.leader == 1


def test_a_reassignment_must_not_change_the_factor_when_that_is_forbidden() -> None:
    cluster = three_brokers()
    create(cluster, "t", [[1, 2]])
    move = ReassignablePartition(partition_index=0, replicas=[1, 2, 3])
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name="t", partitions=[move])], allow_replication_factor_change=False
    )
    decision = cluster.controller.alter_partition_reassignments(cluster.image, request)
    assert decision.response.responses[0].partitions[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert decision.records == []


@pytest.mark.parametrize(("replicas", "code"), [([3, 1], ErrorCode.NONE), ([3], ErrorCode.INVALID_REPLICATION_FACTOR)])
def test_the_factor_of_a_partition_that_moves_is_the_one_it_is_to_have(replicas: list[int], code: ErrorCode) -> None:
    cluster = three_brokers()
    create(cluster, "t", [[1]])
    grow = ReassignablePartition(partition_index=0, replicas=[1, 2])
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=[grow])])
    cluster.decide(cluster.controller.alter_partition_reassignments(cluster.image, request))
    move = ReassignablePartition(partition_index=0, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name="t", partitions=[move])], allow_replication_factor_change=False
    )
    answer = cluster.controller.alter_partition_reassignments(cluster.image, request).response
    assert answer.responses[0].partitions[0].error_code == code


def test_of_an_election_that_is_not_known_no_partition_is_told_that_nobody_named() -> None:
    cluster = three_brokers()
    create(cluster, "t", [[1, 2]])
    everything = ElectLeadersRequest(topic_partitions=None, election_type=2)
    answer = cluster.controller.elect_leaders(cluster.image, everything).response
    assert (answer.error_code, answer.replica_election_results) == (ErrorCode.INVALID_REQUEST, [])
    named = ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="t", partitions=[0])], election_type=2)
    answer = cluster.controller.elect_leaders(cluster.image, named).response
    assert answer.replica_election_results[0].partition_result[0].error_code == ErrorCode.INVALID_REQUEST


# --- brokers ----------------------------------------------------------------------------------------------------------


def test_a_restart_begins_a_new_leader_epoch_with_one_record_per_partition() -> None:
    cluster = OneBroker()
    create(cluster, "t", [[1], [1]])
    listeners = [Endpoint(LISTENER, "127.0.0.1", 9001, 0)]
    decision = cluster.controller.register_broker(cluster.image, Registration(1, b"2" * 16, listeners), fenced=False)
    assert len(decision.records) == 3
    epoch = cluster.decide(decision)
    assert epoch > cluster.epochs[1]
    for partition in cluster.image.topics["t"].partitions:
        assert (partition.leader, partition.leader_epoch, partition.isr) == (1, 1, (1,))


def test_registering_the_same_incarnation_again_changes_nothing() -> None:
    cluster = OneBroker()
    decision = cluster.controller.register_broker(
        cluster.image, Registration(1, b"\x01" * 16, [Endpoint(LISTENER, "127.0.0.1", 9001, 0)]), session_alive=True
    )
    assert decision.records == []
    assert decision.response == cluster.epochs[1]


def test_a_second_broker_with_the_number_of_one_that_is_alive_is_refused() -> None:
    cluster = OneBroker()
    broker = Registration(1, b"2" * 16, [Endpoint(LISTENER, "other", 9001, 0)])
    with pytest.raises(DuplicateBrokerRegistrationError):
        cluster.controller.register_broker(cluster.image, broker, session_alive=True)
    cluster.decide(cluster.controller.fence_broker(cluster.image, 1))
    cluster.decide(cluster.controller.register_broker(cluster.image, broker, session_alive=True, fenced=False))
    assert cluster.image.brokers[1].host == "other"


def test_a_broker_that_shuts_down_hands_over_and_gets_no_new_partitions() -> None:
    cluster = three_brokers()
    create(cluster, "t", [[1, 2]])
    cluster.decide(cluster.controller.shut_down_broker(cluster.image, 1))
    assert cluster.image.topics["t"].partitions[0].leader == 2
    topic = CreatableTopic(name="u", num_partitions=6, replication_factor=2)
    cluster.decide(cluster.controller.create_topics(cluster.image, CreateTopicsRequest(topics=[topic])))
    assert all(1 not in partition.replicas for partition in cluster.image.topics["u"].partitions)


def test_a_broker_that_shuts_down_leads_nothing_when_it_was_fenced_meanwhile_and_is_heard_of_again() -> None:
    cluster = three_brokers()
    create(cluster, "t", [[1]])
    cluster.decide(cluster.controller.fence_broker(cluster.image, 1))
    cluster.decide(cluster.controller.shut_down_broker(cluster.image, 1))
    cluster.decide(cluster.controller.unfence_broker(cluster.image, 1))
    assert not cluster.image.is_active(1)
    assert cluster.image.topics["t"].partitions[0].leader == NO_LEADER


def test_producer_ids_come_in_blocks_that_never_overlap() -> None:
    cluster = three_brokers()
    blocks = [
        cluster.decide(cluster.controller.allocate_producer_ids(cluster.image, node_id, cluster.epochs[node_id]))
        for node_id in (1, 2, 1, 3)
    ]
    assert [block.first for block in blocks] == [i * PRODUCER_ID_BLOCK_SIZE for i in range(4)]
    with pytest.raises(StaleBrokerEpochError):
        cluster.controller.allocate_producer_ids(cluster.image, 1, cluster.epochs[1] + 1)
    with pytest.raises(BrokerIdNotRegisteredError):
        cluster.controller.allocate_producer_ids(cluster.image, 8, 0)


# --- topics -----------------------------------------------------------------------------------------------------------


def test_partitions_added_go_on_where_the_others_stopped() -> None:
    cluster = three_brokers()
    topic = CreatableTopic(name="t", num_partitions=3, replication_factor=1)
    cluster.decide(cluster.controller.create_topics(cluster.image, CreateTopicsRequest(topics=[topic])))
    more = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="t", count=6, assignments=None)])
    cluster.decide(cluster.controller.create_partitions(cluster.image, more))
    leaders = [partition.leader for partition in cluster.image.topics["t"].partitions]
    assert leaders[:3] == leaders[3:]
    assert sorted(leaders[:3]) == [1, 2, 3]


def test_too_many_partitions_at_once_are_refused() -> None:
    cluster = OneBroker()
    topics = [CreatableTopic(name=f"t{i}", num_partitions=6_000, replication_factor=1) for i in range(2)]
    decision = cluster.controller.create_topics(cluster.image, CreateTopicsRequest(topics=topics))
    assert {result.error_code for result in decision.response.topics} == {ErrorCode.POLICY_VIOLATION}
    create(cluster, "t", [[1]])
    more = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="t", count=2**31 - 1, assignments=None)])
    grown = cluster.controller.create_partitions(cluster.image, more)
    assert grown.response.results[0].error_code == ErrorCode.POLICY_VIOLATION


def test_deletion_can_be_switched_off() -> None:
    cluster = OneBroker({"delete.topic.enable": "false"})
    create(cluster, "t", [[1]])
    request = DeleteTopicsRequest(topic_names=["t"])
    decision = cluster.controller.delete_topics(cluster.image, request, 5)
    assert decision.response.responses[0].error_code == ErrorCode.TOPIC_DELETION_DISABLED
    assert decision.records == []
    old = cluster.controller.delete_topics(cluster.image, request, 2)
    assert old.response.responses[0].error_code == ErrorCode.INVALID_REQUEST


def test_internal_topics_fit_a_single_broker_unless_configured_otherwise() -> None:
    cluster = OneBroker()
    for name in (CONSUMER_OFFSETS, TRANSACTION_STATE):
        topic = cluster.controller.internal_topic(cluster.image, name)
        answer = cluster.decide(cluster.controller.create_topics(cluster.image, CreateTopicsRequest(topics=[topic])))
        assert answer.topics[0].error_code == ErrorCode.NONE, answer
        assert len(cluster.image.topics[name].partitions) == 50
        assert cluster.image.config(ResourceType.TOPIC, name)["cleanup.policy"] == "compact"
    strict = OneBroker({"offsets.topic.replication.factor": "3"})
    wanted = strict.controller.internal_topic(strict.image, CONSUMER_OFFSETS)
    refused = strict.controller.create_topics(strict.image, CreateTopicsRequest(topics=[wanted]))
    assert refused.response.topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_an_unknown_topic_key_comes_with_the_one_probably_meant() -> None:
    cluster = OneBroker()
    wrong = CreatableTopicConfig(name="retention_ms", value="1")
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=[wrong])
    decision = cluster.controller.create_topics(cluster.image, CreateTopicsRequest(topics=[topic]))
    assert decision.response.topics[0].error_code == ErrorCode.INVALID_CONFIG
    assert "did you mean retention.ms?" in (decision.response.topics[0].error_message or "")


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_scram_keys_are_those_of_rfc_7677() -> None:
    """The example exchange of the RFC: user `user`, password `pencil`."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 4096)
    cluster = OneBroker()
    upsertion = ScramCredentialUpsertion(name="user", mechanism=1, iterations=4096, salt=salt, salted_password=salted)
    request = AlterUserScramCredentialsRequest(upsertions=[upsertion])
    cluster.decide(cluster.controller.alter_user_scram_credentials(cluster.image, request))
    credential = cluster.image.scram["user", 1]
    auth = (
        b"n=user,r=rOprNGfwEbeRWgbNEkqO,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    proof = base64.b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    signature = hmac.digest(credential.stored_key, auth, "sha256")
    client_key = bytes(a ^ b for a, b in zip(proof, signature))
    assert hashlib.sha256(client_key).digest() == credential.stored_key
    server_signature = hmac.digest(credential.server_key, auth, "sha256")
    assert base64.b64encode(server_signature) == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize(
    ("level", "upgrade_type", "validate_only", "code", "then"),
    [
        (1, 2, False, ErrorCode.NONE, 1),
        (1, 2, True, ErrorCode.NONE, 2),
        (1, 1, False, ErrorCode.INVALID_UPDATE_VERSION, 2),
        (3, 1, False, ErrorCode.INVALID_UPDATE_VERSION, 2),
        (2, 1, False, ErrorCode.NONE, 2),
        (1, 7, False, ErrorCode.INVALID_UPDATE_VERSION, 2),
    ],
)
def test_levels_of_features(level: int, upgrade_type: int, validate_only: bool, code: ErrorCode, then: int) -> None:
    cluster = OneBroker()
    update = FeatureUpdateKey(feature="transaction.version", max_version_level=level, upgrade_type=upgrade_type)
    request = UpdateFeaturesRequest(feature_updates=[update], validate_only=validate_only)
    answer = cluster.decide(cluster.controller.update_features(cluster.image, request))
    assert answer.error_code == code
    assert cluster.image.features["transaction.version"] == then


OLDER = [("metadata.version", 7, 20), ("transaction.version", 0, 1), (ELIGIBLE_LEADER_REPLICAS_VERSION, 0, 0)]


def set_level(cluster: OneBroker, feature: str, level: int, upgrade_type: int) -> int:
    update = FeatureUpdateKey(feature=feature, max_version_level=level, upgrade_type=upgrade_type)
    request = UpdateFeaturesRequest(feature_updates=[update])
    return cluster.decide(cluster.controller.update_features(cluster.image, request)).error_code


def test_a_broker_that_does_not_support_what_is_in_effect_is_not_let_in() -> None:
    cluster = OneBroker()
    listeners = [Endpoint(LISTENER, "127.0.0.1", 9002, 0)]
    with pytest.raises(UnsupportedVersionError, match=r"metadata.version 7 to 20, and the cluster is at 30"):
        cluster.controller.register_broker(cluster.image, Registration(2, b"2" * 16, listeners, features=OLDER))
    assert 2 not in cluster.image.brokers


def test_no_level_is_above_what_a_registered_broker_supports_also_one_that_is_down() -> None:
    cluster = OneBroker()
    levels = dict.fromkeys(SUPPORTED_FEATURES, 0) | {"metadata.version": 20, "transaction.version": 1}
    for feature, level in levels.items():
        assert set_level(cluster, feature, level, 3) == ErrorCode.NONE
    older = Registration(2, b"2" * 16, [Endpoint(LISTENER, "127.0.0.1", 9002, 0)], features=OLDER)
    cluster.decide(cluster.controller.register_broker(cluster.image, older, fenced=True))
    assert set_level(cluster, ELIGIBLE_LEADER_REPLICAS_VERSION, 1, 1) == ErrorCode.INVALID_UPDATE_VERSION
    assert set_level(cluster, "transaction.version", 2, 1) == ErrorCode.INVALID_UPDATE_VERSION
    cluster.decide(cluster.controller.unregister_broker(cluster.image, UnregisterBrokerRequest(broker_id=2)))
    assert set_level(cluster, ELIGIBLE_LEADER_REPLICAS_VERSION, 1, 1) == ErrorCode.NONE


def test_when_replicas_become_eligible_all_count_by_one_minimum() -> None:
    """A leader that does not know it yet, and commits by a smaller one of its own, cannot let a follower go."""
    cluster = three_brokers({"min.insync.replicas": "2"})
    assert set_level(cluster, ELIGIBLE_LEADER_REPLICAS_VERSION, 0, 2) == ErrorCode.NONE
    create(cluster, "t", [[1, 2, 3]])
    own = ConfigRecord(resource_type=ResourceType.BROKER, resource_name="1", name="min.insync.replicas", value="1")
    none = ConfigRecord(resource_type=ResourceType.BROKER, resource_name="", name="min.insync.replicas", value=None)
    cluster.append([own, none])
    before = cluster.image.topics["t"].partitions[0]
    assert set_level(cluster, ELIGIBLE_LEADER_REPLICAS_VERSION, 1, 1) == ErrorCode.NONE
    assert cluster.image.config(ResourceType.BROKER, "1") == {}
    assert cluster.image.config(ResourceType.BROKER, "") == {"min.insync.replicas": "2"}
    assert cluster.image.topics["t"].partitions[0].partition_epoch == before.partition_epoch + 1
    assert ask_isr(cluster, "t", [1], partition_epoch=-1) == ErrorCode.INVALID_UPDATE_VERSION


@pytest.mark.parametrize("name", [CONSUMER_OFFSETS, TRANSACTION_STATE])
def test_no_partitions_are_added_to_what_coordinators_keep_things_in(name: str) -> None:
    cluster = OneBroker()
    create(cluster, name, [[1], [1]])
    request = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=name, count=3)])
    result = cluster.decide(cluster.controller.create_partitions(cluster.image, request)).results[0]
    assert result.error_code == ErrorCode.INVALID_PARTITIONS
    assert "keeps its 2 partition(s)" in (result.error_message or "")
    assert len(cluster.image.topics[name].partitions) == 2


def test_a_new_cluster_is_bootstrapped_once() -> None:
    cluster = OneBroker()
    assert cluster.controller.bootstrap(cluster.image) == []
    elected = Image()
    elected.apply(NoOpRecord())
    assert cluster.controller.bootstrap(elected) == cluster.controller.bootstrap(Image()) != []


def test_metadata_is_made_again_only_where_something_changed() -> None:
    cluster = three_brokers()
    create(cluster, "a", [[1, 2]])
    create(cluster, "b", [[2, 1]])
    request = MetadataRequest(topics=None)
    first = cluster.answers.metadata(request, 12, LISTENER).topics
    again = cluster.answers.metadata(request, 12, LISTENER).topics
    assert all(one is other for one, other in zip(first, again))
    assert ask_isr(cluster, "a", [1]) == ErrorCode.NONE
    changed = cluster.answers.metadata(request, 12, LISTENER).topics
    assert changed[0].partitions[0].isr_nodes == [1]
    assert changed[1] is first[1]
    cluster.decide(cluster.controller.fence_broker(cluster.image, 2))
    fenced = cluster.answers.metadata(request, 12, LISTENER)
    assert [broker.node_id for broker in fenced.brokers] == [1, 3]
    assert fenced.topics[1].partitions[0].leader_id == 1
    assert fenced.topics[1].partitions[0].offline_replicas == [2]


def test_a_topic_recreated_under_the_same_name_is_not_told_from_memory() -> None:
    cluster = OneBroker()
    create(cluster, "t", [[1]])
    before = cluster.answers.metadata(MetadataRequest(topics=None), 12, LISTENER).topics[0]
    cluster.decide(cluster.controller.delete_topics(cluster.image, DeleteTopicsRequest(topic_names=["t"]), 5))
    assert cluster.answers.metadata(MetadataRequest(topics=None), 12, LISTENER).topics == []
    create(cluster, "t", [[1], [1]])
    after = cluster.answers.metadata(MetadataRequest(topics=None), 12, LISTENER).topics[0]
    assert after.topic_id != before.topic_id
    assert len(after.partitions) == 2


def test_a_listener_that_the_leader_lacks_is_told_as_such() -> None:
    cluster = OneBroker()
    create(cluster, "t", [[1]])
    answer = cluster.answers.metadata(MetadataRequest(topics=None), 12, "INTERNAL")
    assert answer.brokers == []
    assert answer.topics[0].partitions[0].error_code == ErrorCode.LISTENER_NOT_FOUND
    assert answer.topics[0].partitions[0].offline_replicas == [1]
    # Older clients do not know that error.
    answer = cluster.answers.metadata(MetadataRequest(topics=None), 5, "INTERNAL")
    assert answer.topics[0].partitions[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE


def test_the_oldest_clients_are_told_of_replicas_that_are_away_by_an_error() -> None:
    cluster = three_brokers()
    create(cluster, "t", [[1, 2], [1, 3]])
    cluster.decide(cluster.controller.fence_broker(cluster.image, 2))
    partitions = cluster.answers.metadata(MetadataRequest(topics=[]), 0, LISTENER).topics[0].partitions
    assert [(one.error_code, one.leader_id, one.replica_nodes, one.isr_nodes) for one in partitions] == [
        (ErrorCode.REPLICA_NOT_AVAILABLE, 1, [1], [1]),
        (ErrorCode.NONE, 1, [1, 3], [1, 3]),
    ]
    partitions = cluster.answers.metadata(MetadataRequest(topics=None), 1, LISTENER).topics[0].partitions
    assert [(one.error_code, one.replica_nodes) for one in partitions] == [
        (ErrorCode.NONE, [1, 2]),
        (ErrorCode.NONE, [1, 3]),
    ]


def test_a_replica_in_a_failed_directory_is_offline_though_its_broker_is_alive() -> None:
    cluster = three_brokers()
    create(cluster, "t", [[2, 1, 3]])
    tell_directory(cluster, 1, DIRECTORY_LOST, ("t", 0))
    told = cluster.answers.metadata(MetadataRequest(topics=None), 12, LISTENER).topics[0].partitions[0]
    assert (told.leader_id, told.isr_nodes, told.offline_replicas) == (2, [2, 3], [1])
    described = cluster.answers.describe_topic_partitions(DescribeTopicPartitionsRequest(), LISTENER, 2000)
    assert described.topics[0].partitions[0].offline_replicas == [1]


def test_the_configuration_of_a_controller_can_be_parsed_again() -> None:
    config = BrokerConfig.parse({"num.partitions": 3, "log.dirs": ["/a", "/b"], "ssl.key.password": "x"})
    assert BrokerConfig.parse(dict(config.given)).values == config.values
