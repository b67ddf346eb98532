"""Committing, fetching, deleting and expiring offsets, in and out of transactions."""

from __future__ import annotations

import pytest

from headrace.errors import ErrorCode
from headrace.groups import TimerKind
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from headrace.protocol.stored.consumer_offsets import decode_record

from .members import GROUP, SESSION_MS, Members, subscription

NONE = ErrorCode.NONE
DAY_MS = 86_400_000
TOPIC = ("topic", 0)


@pytest.fixture
def members() -> Members:
    made = Members.of()
    made.driver.topics.create("topic", 4)
    made.driver.topics.create("other", 4)
    return made


def last_record(members: Members) -> tuple[int, object]:
    """Version and value of the latest record of the group's partition."""
    key, value, *_ = members.driver.log[members.driver.coordinator.partition_of(GROUP)][-1]
    assert value is not None
    return int.from_bytes(value[:2], "big"), decode_record(key, value).value  # type: ignore[union-attr]


def delete_offsets(members: Members, topic: str, *partitions: int) -> list[ErrorCode] | ErrorCode:
    wanted = [OffsetDeleteRequestPartition(partition_index=partition) for partition in partitions]
    request = OffsetDeleteRequest(group_id=GROUP, topics=[OffsetDeleteRequestTopic(name=topic, partitions=wanted)])
    response = members.driver.ask("offset_delete", request, 0)
    if response.error_code:
        return ErrorCode(response.error_code)
    return [ErrorCode(partition.error_code) for partition in response.topics[0].partitions]


def delete_groups(members: Members, *groups: str) -> dict[str, ErrorCode]:
    response = members.driver.ask("delete_groups", DeleteGroupsRequest(groups_names=list(groups)), 2)
    return {result.group_id: ErrorCode(result.error_code) for result in response.results}


# --- who may commit ---------------------------------------------------------------------------------------------------


def test_an_evicted_member_cannot_overwrite(members: Members) -> None:
    (leader, other), generation = members.stable(2)
    assert members.commit(5, member_id=other, generation=generation) == NONE
    members.leave(other)
    assert members.commit(9, member_id=other, generation=generation) == ErrorCode.UNKNOWN_MEMBER_ID
    members.joined(leader)
    assert members.commit(9, member_id=leader, generation=generation) == ErrorCode.ILLEGAL_GENERATION
    assert members.offsets() == {TOPIC: 5}


def test_from_version_9_on_an_unknown_group_is_named_as_such(members: Members) -> None:
    assert members.commit(1, member_id="m", generation=3, version=8) == ErrorCode.ILLEGAL_GENERATION
    assert members.commit(1, member_id="m", generation=3, version=9) == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_commit_of_unknown_topics_makes_no_group(members: Members) -> None:
    assert members.commit(1, topic="nowhere") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert members.commit(1, partition=4) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert members.commit(1, partition=-1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert members.commit(1, metadata="x" * 5_000) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert members.state() == "Dead"


@pytest.mark.parametrize("name", ["x" * 32_768, "\ufffd" * 10_923], ids=["letters", "bytes"])
def test_a_commit_to_a_group_whose_name_no_record_can_hold_leaves_nothing_behind(members: Members, name: str) -> None:
    """Else the partition would be unstable, and the group there, until a restart."""
    assert members.commit(1, group=name, version=9) == ErrorCode.INVALID_GROUP_ID
    assert members.txn_commit(1, group=name) == ErrorCode.INVALID_GROUP_ID
    assert not list(members.driver.coordinator.groups())


def test_metadata_that_no_record_can_hold_is_too_large_whatever_the_configuration_allows() -> None:
    members = Members.of(offset_metadata_max_bytes=100_000)
    members.driver.topics.create("topic")
    assert members.commit(1, metadata="x" * 32_767) == NONE
    assert members.commit(2, metadata="x" * 32_768) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert members.offsets(stable=True) == {TOPIC: 1}


def test_metadata_is_measured_in_utf16_units(members: Members) -> None:
    assert members.commit(1, metadata="é" * 4_096) == NONE
    assert members.commit(1, metadata="\U0001f600" * 2_049) == ErrorCode.OFFSET_METADATA_TOO_LARGE


# --- records ----------------------------------------------------------------------------------------------------------


def test_a_commit_is_written_in_the_version_that_kafka_writes(members: Members) -> None:
    members.commit(7, metadata="m")
    version, value = last_record(members)
    assert (version, value.offset, value.metadata) == (4, 7, "m")  # type: ignore[attr-defined]
    assert value.commit_timestamp == members.driver.now_ms  # type: ignore[attr-defined]
    assert value.topic_id == members.driver.topics.known["topic"][0]  # type: ignore[attr-defined]


def test_a_retention_of_its_own_is_written_in_version_1_and_kept(members: Members) -> None:
    members.commit(7, retention_ms=60_000, version=4)
    version, value = last_record(members)
    assert (version, value.expire_timestamp) == (1, members.driver.now_ms + 60_000)  # type: ignore[attr-defined]
    members.driver.reload()
    members.driver.advance(600_000)
    assert members.offsets() == {}


def test_a_group_is_written_in_version_3(members: Members) -> None:
    (member_id,), _ = members.stable()
    version, value = last_record(members)
    assert (version, value.generation, value.leader) == (3, 1, member_id)  # type: ignore[attr-defined]
    assert value.members[0].assignment == f"of {member_id}".encode()  # type: ignore[attr-defined]


# --- topic ids --------------------------------------------------------------------------------------------------------


def commit_by_id(members: Members, topic_id: bytes, offset: int) -> ErrorCode:
    partition = OffsetCommitRequestPartition(committed_offset=offset)
    topic = OffsetCommitRequestTopic(topic_id=topic_id, partitions=[partition])
    response = members.driver.ask("offset_commit", OffsetCommitRequest(group_id=GROUP, topics=[topic]), 10)
    assert response.topics[0].topic_id == topic_id
    return ErrorCode(response.topics[0].partitions[0].error_code)


def fetch_by_id(members: Members, topic_id: bytes) -> tuple[int, ErrorCode]:
    topic = OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0])
    group = OffsetFetchRequestGroup(group_id=GROUP, topics=[topic])
    answered = members.driver.ask("offset_fetch", OffsetFetchRequest(groups=[group]), 10).groups[0].topics[0]
    assert answered.topic_id == topic_id
    return answered.partitions[0].committed_offset, ErrorCode(answered.partitions[0].error_code)


def test_offsets_of_a_topic_that_was_made_anew_are_not_its_predecessors(members: Members) -> None:
    old = members.driver.topics.create("again")
    assert commit_by_id(members, old, 5) == NONE
    members.driver.topics.known.pop("again")
    new = old[:-1] + b"\x02"
    members.driver.topics.known["again"] = (new, 1)
    assert fetch_by_id(members, new) == (-1, NONE)
    assert fetch_by_id(members, old) == (-1, ErrorCode.UNKNOWN_TOPIC_ID)
    assert commit_by_id(members, old, 6) == ErrorCode.UNKNOWN_TOPIC_ID
    assert commit_by_id(members, new, 1) == NONE
    # The old topic's deletion comes late: what was committed to the new one stays.
    members.driver.absorb(members.driver.coordinator.topics_deleted({"again": old}, members.driver.now))
    assert fetch_by_id(members, new) == (1, NONE)
    members.driver.reload()
    assert fetch_by_id(members, new) == (1, NONE)


def test_all_topics_by_id_leave_out_those_that_are_gone(members: Members) -> None:
    members.commit(1)
    members.commit(2, topic="other")
    other = members.driver.topics.known.pop("other")[0]
    group = OffsetFetchRequestGroup(group_id=GROUP, topics=None)
    topics = members.driver.ask("offset_fetch", OffsetFetchRequest(groups=[group]), 10).groups[0].topics
    assert [topic.topic_id for topic in topics] == [members.driver.topics.known["topic"][0]]
    assert other not in [topic.topic_id for topic in topics]


# --- while a write is under way ---------------------------------------------------------------------------------------


def test_an_offset_counts_once_it_is_written_and_is_unstable_until_then(members: Members) -> None:
    members.commit(1)
    members.driver.hold = True
    token = members.driver.send("offset_commit", members.commit_request(2), 8)
    assert members.offsets() == {TOPIC: 1}
    assert members.offsets(stable=True) == {TOPIC: ErrorCode.UNSTABLE_OFFSET_COMMIT}
    assert token not in members.driver.answers
    members.driver.release()
    assert members.driver.answers[token].topics[0].partitions[0].error_code == NONE
    assert members.offsets(stable=True) == {TOPIC: 2}


def test_of_two_commits_the_later_one_counts_even_if_its_write_is_heard_of_first(members: Members) -> None:
    members.driver.hold = True
    for offset in (1, 2):
        members.driver.send("offset_commit", members.commit_request(offset), 8)
    members.driver.held.reverse()
    members.driver.release()
    assert members.offsets() == {TOPIC: 2}


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_a_commit_that_is_not_written_changes_nothing(members: Members, failure: ErrorCode, told: ErrorCode) -> None:
    members.driver.hold = True
    request = members.commit_request(2)
    request.topics[0].partitions.append(OffsetCommitRequestPartition(partition_index=99))
    token = members.driver.send("offset_commit", request, 8)
    members.driver.fail(failure)
    errors = [partition.error_code for partition in members.driver.answers[token].topics[0].partitions]
    assert errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, told]  # what does not exist leads, as in Kafka
    assert members.offsets(stable=True) == {}
    assert members.state() == "Dead"  # the group was made for this commit


# --- transactions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reload", [False, True])
@pytest.mark.parametrize("committed", [False, True])
def test_offsets_of_a_transaction_count_from_its_commit_on(members: Members, committed: bool, reload: bool) -> None:
    members.commit(1)
    assert members.txn_commit(5) == NONE
    if reload:
        members.driver.reload()
    assert members.offsets() == {TOPIC: 1}
    assert members.offsets(stable=True) == {TOPIC: ErrorCode.UNSTABLE_OFFSET_COMMIT}
    members.driver.end_transaction(GROUP, 7, committed)
    if reload:
        members.driver.reload()
    assert members.offsets(stable=True) == {TOPIC: 5 if committed else 1}


@pytest.mark.parametrize("reload", [False, True])
def test_a_commit_after_that_of_an_open_transaction_prevails(members: Members, reload: bool) -> None:
    members.txn_commit(5)
    members.commit(9)
    if reload:
        members.driver.reload()
    members.driver.end_transaction(GROUP, 7, True)
    assert members.offsets() == {TOPIC: 9}


def test_transactions_of_two_producers_are_apart(members: Members) -> None:
    members.txn_commit(5, producer_id=1)
    members.txn_commit(6, producer_id=2)
    members.driver.end_transaction(GROUP, 2, False)
    assert members.offsets(stable=True) == {}
    topic = OffsetFetchRequestTopic(name="topic", partition_indexes=[0])
    request = OffsetFetchRequest(group_id=GROUP, topics=[topic], require_stable=True)
    answered = members.driver.ask("offset_fetch", request, 7).topics[0].partitions[0]
    assert answered.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    members.driver.end_transaction(GROUP, 1, True)
    assert members.offsets(stable=True) == {TOPIC: 5}


def test_a_transactional_commit_names_the_producer_for_its_batch(members: Members) -> None:
    members.driver.hold = True
    with pytest.raises(AssertionError, match="waits"):
        members.txn_commit(5, producer_id=12)
    (outcome,) = members.driver.held
    assert outcome.producer is not None
    assert outcome.producer.producer_id == 12


def test_who_may_commit_in_a_transaction(members: Members) -> None:
    assert members.txn_commit(1, member_id="m", generation=3) == ErrorCode.ILLEGAL_GENERATION
    assert members.txn_commit(1, group="") == ErrorCode.INVALID_GROUP_ID
    assert members.txn_commit(1, topic="nowhere") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    (member_id,), generation = members.stable()
    assert members.txn_commit(1) == NONE  # an old producer does not say who it is
    assert members.txn_commit(1, member_id=member_id, generation=generation) == NONE
    assert members.txn_commit(1, member_id=member_id, generation=9) == ErrorCode.ILLEGAL_GENERATION
    assert members.txn_commit(1, member_id="m", generation=generation) == ErrorCode.UNKNOWN_MEMBER_ID
    assert members.joined(member_id).generation_id == generation + 1
    assert members.txn_commit(1, member_id=member_id, generation=generation + 1) == NONE  # even before the sync


def test_a_group_can_be_deleted_with_a_transaction_open(members: Members) -> None:
    members.txn_commit(5)
    assert delete_groups(members, GROUP) == {GROUP: NONE}
    members.driver.end_transaction(GROUP, 7, True)
    assert members.offsets() == {}
    members.driver.reload()
    assert members.offsets() == {}
    assert members.state() == "Dead"


# --- delete -----------------------------------------------------------------------------------------------------------


def test_offsets_of_topics_that_are_subscribed_to_stay(members: Members) -> None:
    (member_id,), generation = members.stable(protocols={"range": subscription("topic")})
    members.commit(1, member_id=member_id, generation=generation)
    members.commit(2, topic="other", member_id=member_id, generation=generation)
    assert delete_offsets(members, "topic", 0) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]
    assert delete_offsets(members, "other", 0, 3) == [NONE, NONE]
    assert members.offsets() == {TOPIC: 1}
    members.driver.reload()
    assert members.offsets() == {TOPIC: 1}
    assert delete_offsets(members, "topic", 0) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]


def test_offsets_of_an_active_group_that_is_not_of_consumers_stay(members: Members) -> None:
    members.stable(protocol_type="connect")
    assert delete_offsets(members, "topic", 0) == ErrorCode.NON_EMPTY_GROUP


def test_deleting_offsets_reaches_those_being_written_and_pending_ones(members: Members) -> None:
    members.txn_commit(5, partition=1)
    members.driver.hold = True
    members.driver.send("offset_commit", members.commit_request(2), 8)
    wanted = [OffsetDeleteRequestPartition(partition_index=n) for n in (0, 1)]
    topic = OffsetDeleteRequestTopic(name="topic", partitions=wanted)
    members.driver.send("offset_delete", OffsetDeleteRequest(group_id=GROUP, topics=[topic]), 0)
    members.driver.release()
    members.driver.end_transaction(GROUP, 7, True)
    assert members.offsets() == {}
    members.driver.reload()
    assert members.offsets() == {}


def test_a_group_under_deletion_takes_nobody_and_comes_back_when_it_fails(members: Members) -> None:
    members.commit(1)
    members.driver.hold = True
    token = members.driver.send("delete_groups", DeleteGroupsRequest(groups_names=[GROUP]), 2)
    assert members.joined().error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert members.commit(2) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert delete_groups(members, GROUP) == {GROUP: ErrorCode.GROUP_ID_NOT_FOUND}
    assert members.driver.ask("list_groups", ListGroupsRequest(), 5).groups == []
    members.driver.fail(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert members.driver.answers[token].results[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert members.offsets() == {TOPIC: 1}
    assert members.state() == "Empty"


@pytest.mark.parametrize("is_written", [True, False], ids=["written", "not written"])
def test_offsets_of_a_group_are_told_until_its_deletion_is_written(members: Members, is_written: bool) -> None:
    """A consumer that is told of none begins where `auto.offset.reset` says, and the deletion may still fail."""
    members.commit(1)
    members.driver.hold = True
    members.driver.send("delete_groups", DeleteGroupsRequest(groups_names=[GROUP]), 2)
    assert members.offsets() == {TOPIC: 1}
    assert members.offsets(stable=True) == {TOPIC: 1}
    if is_written:
        members.driver.release()
    else:
        members.driver.fail(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert members.offsets() == ({} if is_written else {TOPIC: 1})


def test_groups_with_many_offsets_are_deleted_in_several_steps() -> None:
    members = Members.of(tombstones_max=10)
    members.driver.topics.create("topic", 100)
    for group, count in {"a": 4, "b": 5, "c": 4, "d": 30, "e": 1}.items():
        for partition in range(count):
            members.commit(1, group=group, partition=partition)
    request = DeleteGroupsRequest(groups_names=["a", "nowhere", "b", "c", "a", "d", "e"])
    steps = [step.groups_names for step in members.driver.coordinator.steps_of_deletion(request)]
    assert steps == [["a", "nowhere"], ["b"], ["c"], ["d"], ["e"]]
    assert members.driver.coordinator.steps_of_deletion(DeleteGroupsRequest()) == [DeleteGroupsRequest()]


def test_groups_of_several_partitions_are_deleted_each_for_itself(members: Members) -> None:
    names = ["a", "b", "c"]  # of three different partitions
    for name in names:
        members.commit(1, group=name)
    members.driver.hold = True
    token = members.driver.send("delete_groups", DeleteGroupsRequest(groups_names=names), 2)
    (outcome,) = members.driver.held
    coordinator = members.driver.coordinator
    of_b = coordinator.partition_of("b")
    failed = {
        position: ErrorCode.NOT_LEADER_OR_FOLLOWER
        for position, effect in enumerate(outcome.effects)
        if effect.partition == of_b
    }
    members.driver.absorb(coordinator.failed(outcome, failed, members.driver.now))
    errors = [result.error_code for result in members.driver.answers[token].results]
    assert errors == [NONE, ErrorCode.NOT_COORDINATOR, NONE]
    assert [members.state(name) for name in names] == ["Dead", "Empty", "Dead"]


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_topic_that_was_made_anew_inherits_nothing_even_if_no_tombstone_was_written(
    members: Members, in_transaction: bool
) -> None:
    """The broker may fail between the topic's deletion and that of its offsets."""
    if in_transaction:
        members.txn_commit(500)
        members.driver.end_transaction(GROUP, 7, True)
    else:
        members.commit(500)
    assert members.offsets() == {TOPIC: 500}
    members.driver.topics.known["topic"] = (bytes(15) + b"\x63", 100)
    members.driver.reload()
    assert members.offsets() == {}
    request = OffsetFetchRequest(
        group_id=GROUP, topics=[OffsetFetchRequestTopic(name="topic", partition_indexes=[TOPIC[1]])]
    )
    (topic,) = members.driver.ask("offset_fetch", request, 5).topics
    assert topic.partitions[0].committed_offset == -1
    members.driver.advance(1_200_000)
    assert members.state() == "Dead", "what nobody can want any more is removed"
    assert members.commit(3) == NONE
    assert members.offsets() == {TOPIC: 3}


def test_deleted_topics_take_their_offsets_with_them(members: Members) -> None:
    members.commit(1)
    members.commit(2, topic="other")
    members.txn_commit(3, partition=1)
    topic_id = members.driver.topics.known["topic"][0]
    members.driver.absorb(members.driver.coordinator.topics_deleted({"topic": topic_id}, members.driver.now))
    members.driver.end_transaction(GROUP, 7, True)
    assert members.offsets() == {("other", 0): 2}
    members.driver.reload()
    assert members.offsets() == {("other", 0): 2}


@pytest.fixture
def in_steps() -> Members:
    """A group with more offsets in a topic that is deleted than are forgotten in one step."""
    members = Members.of(tombstones_max=10)
    topic_id = members.driver.topics.create("topic", 100)
    for partition in range(25):
        members.commit(1, partition=partition)
    members.commit(1, partition=25, group="a group of another partition")
    members.driver.hold = True
    del members.driver.topics.known["topic"]
    members.driver.absorb(members.driver.coordinator.topics_deleted({"topic": topic_id}, members.driver.now))
    return members


def test_offsets_in_a_topic_that_is_gone_are_forgotten_step_by_step(in_steps: Members) -> None:
    """Many of them in one step would keep everybody waiting."""
    in_steps.driver.advance(0)
    assert [len(outcome.records) for outcome in in_steps.driver.held] == [10, 10, 6]
    in_steps.driver.hold = False
    in_steps.driver.release()
    assert in_steps.offsets() == {} == in_steps.offsets("a group of another partition")
    assert {timer.kind for timer in in_steps.driver.timers} == {TimerKind.EXPIRY}


@pytest.mark.parametrize("commit", ["written", "being written", "in a transaction"])
def test_what_is_committed_meanwhile_for_a_topic_that_was_made_anew_stays(in_steps: Members, commit: str) -> None:
    driver = in_steps.driver
    driver.topics.known["topic"] = (b"another" + bytes(9), 100)
    driver.release()
    driver.hold = commit == "being written"
    if commit == "in a transaction":
        in_steps.txn_commit(7, partition=24)
    else:
        driver.send("offset_commit", in_steps.commit_request(7, partition=24), 8)
    driver.advance(0)
    driver.hold = False
    driver.release()
    driver.end_transaction(GROUP, 7, True)
    assert in_steps.offsets() == {("topic", 24): 7}
    driver.reload()
    assert in_steps.offsets() == {("topic", 24): 7}


def test_the_rest_is_left_to_whoever_leads_when_the_partition_is_lost(in_steps: Members) -> None:
    for partition in range(4):
        in_steps.driver.absorb(in_steps.driver.coordinator.unload(partition))
    in_steps.driver.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    in_steps.driver.advance(0)
    assert not in_steps.driver.held
    assert not in_steps.driver.timers


# --- expiry -----------------------------------------------------------------------------------------------------------


def test_offsets_of_a_group_without_members_expire_after_their_commit(members: Members) -> None:
    members.commit(1)
    members.driver.advance(DAY_MS)
    members.commit(2, partition=1)
    members.driver.advance(6 * DAY_MS)
    assert members.offsets() == {("topic", 1): 2}
    members.driver.advance(DAY_MS)
    assert members.offsets() == {}
    assert members.state() == "Dead"
    members.driver.reload()
    assert members.state() == "Dead"


def test_offsets_of_a_left_group_expire_after_it_became_empty(members: Members) -> None:
    (member_id,), generation = members.stable(session_ms=1_800_000)
    members.commit(1, member_id=member_id, generation=generation)
    for _ in range(10 * 48):
        members.driver.advance(1_799_999)
        members.heartbeat(member_id, generation)
    assert members.offsets() == {TOPIC: 1}
    members.leave(member_id)
    members.driver.advance(7 * DAY_MS - 600_000)
    members.driver.reload()
    assert members.offsets() == {TOPIC: 1}
    members.driver.advance(1_200_000)
    assert members.offsets() == {}
    assert members.state() == "Dead"


def test_in_an_active_group_only_offsets_of_topics_without_subscription_expire(members: Members) -> None:
    more = {"session_ms": 1_800_000, "protocols": {"range": subscription("topic")}}
    (member_id,), generation = members.stable(**more)
    members.commit(1, member_id=member_id, generation=generation)
    members.commit(2, topic="other", member_id=member_id, generation=generation)
    for _ in range(8 * 48):
        members.driver.advance(1_799_999)
        assert members.heartbeat(member_id, generation) == NONE
    assert members.offsets() == {TOPIC: 1}


def test_when_nobody_knows_the_subscriptions_nothing_expires_in_an_active_group(members: Members) -> None:
    (member_id,), generation = members.stable(session_ms=1_800_000, protocols={"range": b"?"})
    members.commit(2, topic="other", member_id=member_id, generation=generation)
    for _ in range(8 * 48):
        members.driver.advance(1_799_999)
        members.heartbeat(member_id, generation)
    assert members.offsets() == {("other", 0): 2}


def test_a_pending_transaction_keeps_its_offset_and_its_group(members: Members) -> None:
    members.commit(1)
    members.txn_commit(2)
    members.driver.advance(8 * DAY_MS)
    assert members.offsets() == {TOPIC: 1}
    members.driver.end_transaction(GROUP, 7, False)
    members.driver.advance(1_200_000)
    assert members.state() == "Dead"


def test_a_pass_writes_no_more_tombstones_than_its_limit() -> None:
    members = Members.of(tombstones_max=10)
    members.driver.topics.create("topic", 100)
    for partition in range(35):
        members.commit(1, partition=partition)
    members.driver.hold = True
    members.driver.run_until(members.driver.now_ms + 8 * DAY_MS, stop=lambda: bool(members.driver.held))
    assert len(members.driver.held[0].records) == 10
    members.driver.hold = False
    members.driver.release()
    assert len(members.offsets()) == 25
    members.driver.advance(5_000)
    assert members.offsets() == {}
    timers = [timer for timer in members.driver.timers if timer.kind is TimerKind.EXPIRY]
    assert len(timers) == 4


def test_empty_groups_without_offsets_are_removed(members: Members) -> None:
    members.driver.wait(members.join(version=3))
    members.driver.advance(SESSION_MS)
    assert members.state() == "Empty"
    members.driver.advance(1_200_000)
    assert members.state() == "Dead"
    assert members.driver.ask("list_groups", ListGroupsRequest(), 5).groups == []
