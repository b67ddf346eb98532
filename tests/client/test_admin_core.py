"""Operations without a network: who is asked, what is tried again, what comes of answers that are missing or late."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace.assignors import Assignment, encode_assignment
from headrace.client.admin import configs, groups, security, topics
from headrace.client.admin.core import Ask, Context, Results
from headrace.client.admin.reset import ResetError, ResetTo, reset_group_offsets
from headrace.client.admin.types import (
    ConfigResource,
    NewTopic,
    ResourceType,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from headrace.client.cluster.core import ClientCore
from headrace.client.configs import COMMON_KEYS, ConnectionConfig, read_config
from headrace.client.flows import Task
from headrace.client.offsets import OffsetSpec
from headrace.config import ConfigDefinition
from headrace.errors import (
    CoordinatorNotAvailableError,
    ErrorCode,
    HeadraceError,
    NetworkError,
    RequestTimedOutError,
    TopicAlreadyExistsError,
    UnacceptableCredentialError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from headrace.net.connection import Call
from headrace.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from headrace.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from headrace.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from headrace.protocol.messages.list_groups import ListedGroup, ListGroupsResponse
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from headrace.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headrace.topics import TopicPartition

from .fake import VirtualClock


class _NoTransport:
    def open_connection(self, connection: Any) -> None:
        pass

    def flush_connection(self, connection: Any) -> None:
        pass

    def close_connection(self, connection: Any) -> None:
        pass


class Driver:
    """Runs an operation against functions that answer requests, on a clock of its own."""

    def __init__(self, **answers: Any) -> None:
        self.clock = VirtualClock()
        values = read_config(ConfigDefinition(COMMON_KEYS), {"bootstrap.servers": "127.0.0.1:1"})
        self.core = ClientCore(ConnectionConfig.of(values), self.clock, random.Random(1), _NoTransport())
        self.core.submit = self.submit  # type: ignore[method-assign]  # nothing is sent
        self.answers = {"Metadata": self.metadata, **answers}
        self.asked: list[Ask] = []
        self.paused_s: list[float] = []
        self.controller_id = 1
        self.leaders = {TopicPartition("t", 0): 1, TopicPartition("t", 1): 2}

    def metadata(self, request: MetadataRequest, node_id: int | None) -> MetadataResponse:
        brokers = [MetadataResponseBroker(node_id=i, host="h", port=9000 + i) for i in (1, 2)]
        found = []
        for wanted in request.topics or []:
            partitions = [
                MetadataResponsePartition(partition_index=tp.partition, leader_id=leader)
                for tp, leader in self.leaders.items()
                if tp.topic == wanted.name
            ]
            code = 0 if partitions else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            found.append(MetadataResponseTopic(name=wanted.name, partitions=partitions, error_code=code))
        return MetadataResponse(brokers=brokers, controller_id=self.controller_id, topics=found)

    def run(self, operation: Any, *arguments: Any, timeout_ms: float = 10_000, **keywords: Any) -> Any:
        task: Task[Any] = Task(operation(Context(self.core, timeout_ms), *arguments, **keywords))
        for _ in range(1000):
            task.advance(self.clock.now)
            if task.error is not None:
                raise task.error
            if task.done:
                return task.result
            self.paused_s.append(task.due() - self.clock.now)
            self.clock.now = task.due()
        raise AssertionError("the operation does not end")

    def submit(self, node_id: int | None, request: Any, *_: Any, version_max: int | None, **__: Any) -> Call:
        self.asked.append(Ask(node_id, request, version_max))
        call = Call(request, node_id, 0.0, 0.0)
        # A broker of before there were such groups.
        is_newer = call.name in ("ConsumerGroupDescribe", "ShareGroupDescribe", "StreamsGroupDescribe")
        answer = UnsupportedVersionError() if is_newer else self.answers[call.name](request, node_id)
        is_error = isinstance(answer, HeadraceError)
        call.finish(None if is_error else answer, answer if is_error else None)
        return call

    def nodes_asked(self, kind: type) -> list[int | None]:
        return [ask.node_id for ask in self.asked if isinstance(ask.request, kind)]


def created(request: CreateTopicsRequest, codes: dict[str, int] | None = None) -> CreateTopicsResponse:
    return CreateTopicsResponse(
        topics=[
            CreatableTopicResult(name=topic.name, error_code=(codes or {}).get(topic.name, 0), num_partitions=3)
            for topic in request.topics
        ]
    )


# --- results ----------------------------------------------------------------------------------------------------------


def test_results_give_a_value_or_raise_its_error_on_access() -> None:
    error = TopicAlreadyExistsError("b is there")
    results = Results({"a": 1}, {"b": error})
    assert results["a"] == 1
    with pytest.raises(TopicAlreadyExistsError):
        results["b"]
    with pytest.raises(TopicAlreadyExistsError):
        results.all()
    assert list(results) == ["a", "b"]
    assert "b" in results
    assert len(results) == 2
    assert Results({"a": 1}, {}).all() == {"a": 1}
    with pytest.raises(KeyError):
        results["c"]


# --- controller -------------------------------------------------------------------------------------------------------


def test_topics_are_created_by_the_controller() -> None:
    driver = Driver(CreateTopics=lambda request, _: created(request))
    driver.controller_id = 2
    results = driver.run(topics.create_topics, [NewTopic("x", 3)])
    assert results["x"].num_partitions == 3
    assert driver.nodes_asked(CreateTopicsRequest) == [2]


def test_a_controller_that_moved_is_looked_up_again() -> None:
    def answer(request: CreateTopicsRequest, node_id: int | None) -> CreateTopicsResponse:
        if node_id == 1:
            driver.controller_id = 2
            return created(request, {"x": ErrorCode.NOT_CONTROLLER})
        return created(request)

    driver = Driver(CreateTopics=answer)
    driver.run(topics.create_topics, [NewTopic("x")]).all()
    assert driver.nodes_asked(CreateTopicsRequest) == [1, 2]
    assert len(driver.paused_s) == 1


def test_only_what_may_pass_is_tried_again() -> None:
    requests: list[list[str]] = []

    def answer(request: CreateTopicsRequest, _: int | None) -> CreateTopicsResponse:
        requests.append([topic.name for topic in request.topics])
        first = len(requests) == 1
        codes = {"taken": ErrorCode.TOPIC_ALREADY_EXISTS, "slow": ErrorCode.REQUEST_TIMED_OUT if first else 0}
        return created(request, codes)

    results = Driver(CreateTopics=answer).run(topics.create_topics, [NewTopic(n) for n in ("good", "taken", "slow")])
    assert requests == [["good", "taken", "slow"], ["slow"]]
    assert set(results.ok) == {"good", "slow"}
    with pytest.raises(TopicAlreadyExistsError, match="taken"):
        results["taken"]


def test_an_item_that_the_answer_does_not_mention_is_an_error() -> None:
    results = Driver(CreateTopics=lambda *_: CreateTopicsResponse()).run(topics.create_topics, [NewTopic("x")])
    with pytest.raises(HeadraceError, match="does not mention x"):
        results["x"]


def test_retries_end_with_the_time_and_name_the_last_answer() -> None:
    driver = Driver(CreateTopics=lambda request, _: created(request, {"x": ErrorCode.NOT_CONTROLLER}))
    results = driver.run(topics.create_topics, [NewTopic("x")], timeout_ms=3000)
    with pytest.raises(RequestTimedOutError, match="3000 ms; the last answer was: topic x") as raised:
        results["x"]
    assert isinstance(raised.value.__cause__, HeadraceError)
    assert 1 < sum(driver.paused_s) <= 3
    # The waits grow.
    assert driver.paused_s[-1] > driver.paused_s[0]


def test_a_lost_connection_is_tried_again() -> None:
    calls = iter([NetworkError("gone"), None])
    driver = Driver(CreateTopics=lambda request, _: next(calls) or created(request))
    assert driver.run(topics.create_topics, [NewTopic("x")])["x"].name == "x"


# --- leaders ----------------------------------------------------------------------------------------------------------


def offsets_of(request: ListOffsetsRequest, code: int = 0) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(
                        partition_index=p.partition_index, error_code=code, offset=10 + p.partition_index
                    )
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def test_each_leader_is_asked_for_its_partitions() -> None:
    driver = Driver(ListOffsets=lambda request, _: offsets_of(request))
    results = driver.run(topics.list_offsets, dict.fromkeys(driver.leaders, OffsetSpec.latest()))
    assert {tp: info.offset for tp, info in results.all().items()} == {("t", 0): 10, ("t", 1): 11}
    assert driver.nodes_asked(ListOffsetsRequest) == [1, 2]


def test_a_leader_that_moved_is_looked_up_again() -> None:
    def answer(request: ListOffsetsRequest, node_id: int | None) -> ListOffsetsResponse:
        if node_id == 1:
            driver.leaders[TopicPartition("t", 0)] = 2
            return offsets_of(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return offsets_of(request)

    driver = Driver(ListOffsets=answer)
    results = driver.run(topics.list_offsets, {TopicPartition("t", 0): OffsetSpec.latest()})
    assert results.all()
    assert driver.nodes_asked(ListOffsetsRequest) == [1, 2]


def test_a_partition_or_topic_that_does_not_exist_is_said_at_once() -> None:
    driver = Driver(ListOffsets=lambda request, _: offsets_of(request))
    wanted = [TopicPartition("t", 7), TopicPartition("nope", 0)]
    results = driver.run(topics.list_offsets, dict.fromkeys(wanted, OffsetSpec.latest()))
    assert all(isinstance(error, UnknownTopicOrPartitionError) for error in results.errors.values())
    assert "t has no partition 7" in str(results.errors[wanted[0]])
    assert "nope" in str(results.errors[wanted[1]])
    assert driver.paused_s == []


def test_a_partition_without_a_leader_is_waited_for() -> None:
    driver = Driver(ListOffsets=lambda request, _: offsets_of(request))
    driver.leaders = {TopicPartition("t", 0): -1}
    results = driver.run(topics.list_offsets, {TopicPartition("t", 0): OffsetSpec.latest()}, timeout_ms=2000)
    with pytest.raises(RequestTimedOutError, match="has no leader"):
        results[TopicPartition("t", 0)]
    assert driver.paused_s


# --- coordinators -----------------------------------------------------------------------------------------------------


def found(request: FindCoordinatorRequest, node_id: int, code: int = 0) -> FindCoordinatorResponse:
    keys = request.coordinator_keys
    entries = [Coordinator(key=key, node_id=node_id, host="h", port=9, error_code=code) for key in keys]
    return FindCoordinatorResponse(coordinators=entries)


def described(request: DescribeGroupsRequest, code: int = 0, state: str = "Empty") -> DescribeGroupsResponse:
    entries = [DescribedGroup(group_id=name, error_code=code, group_state=state) for name in request.groups]
    return DescribeGroupsResponse(groups=entries)


def test_a_coordinator_that_moved_is_looked_up_again() -> None:
    where = iter([1, 2])

    def describe(request: DescribeGroupsRequest, node_id: int | None) -> DescribeGroupsResponse:
        return described(request, ErrorCode.NOT_COORDINATOR if node_id == 1 else 0)

    driver = Driver(FindCoordinator=lambda request, _: found(request, next(where)), DescribeGroups=describe)
    assert driver.run(groups.describe_groups, ["g"])["g"].coordinator.id == 2
    assert driver.nodes_asked(DescribeGroupsRequest) == [1, 2]


def test_an_answer_of_an_old_broker_names_one_coordinator() -> None:
    driver = Driver(
        FindCoordinator=lambda request, _: FindCoordinatorResponse(node_id=2, host="h", port=9),
        DescribeGroups=lambda request, _: described(request),
    )
    assert driver.run(groups.describe_groups, ["g"])["g"].state == "Empty"
    assert driver.nodes_asked(DescribeGroupsRequest) == [2]


def test_a_group_without_a_coordinator_fails_alone() -> None:
    def find(request: FindCoordinatorRequest, _: int | None) -> FindCoordinatorResponse:
        return found(request, 1, ErrorCode.COORDINATOR_NOT_AVAILABLE if request.key == "lost" else 0)

    driver = Driver(FindCoordinator=find, DescribeGroups=lambda request, _: described(request))
    results = driver.run(groups.describe_groups, ["lost", "fine"], timeout_ms=1000)
    assert results["fine"].state == "Empty"
    with pytest.raises(RequestTimedOutError) as raised:
        results["lost"]
    assert isinstance(raised.value.__cause__, CoordinatorNotAvailableError)


ASSIGNED = encode_assignment(Assignment([TopicPartition("t", 0), TopicPartition("t", 1)]))


@pytest.mark.parametrize(
    ("subscription", "topics"),
    [
        # Faust's: of version 4, with the fields of version 0.
        (b"\0\4" + b"\0\0\0\1\0\1t" + b"\0\0\0\2{}", ("t",)),
        (b"\0\1" + b"\0\0\0\1\0\1t", ("t",)),
        (b"\xff\xff", ()),
        (b"\0\0\0\0\0\7", ()),
        (b"?", ()),
    ],
)
def test_what_a_member_is_assigned_is_shown_whatever_its_subscription_looks_like(
    subscription: bytes, topics: tuple[str, ...]
) -> None:
    member = DescribedGroupMember(member_id="m", member_metadata=subscription, member_assignment=ASSIGNED)
    group = DescribedGroup(group_id="g", group_state="Stable", protocol_type="consumer", members=[member])
    driver = Driver(
        FindCoordinator=lambda request, _: found(request, 1),
        DescribeGroups=lambda request, _: DescribeGroupsResponse(groups=[group]),
    )
    (described_member,) = driver.run(groups.describe_groups, ["g"])["g"].members
    assert described_member.assignment == (TopicPartition("t", 0), TopicPartition("t", 1))
    assert described_member.topics == topics


def test_a_dead_group_does_not_exist() -> None:
    driver = Driver(
        FindCoordinator=lambda request, _: found(request, 1),
        DescribeGroups=lambda request, _: described(request, state="Dead"),
    )
    with pytest.raises(HeadraceError, match="g does not exist"):
        driver.run(groups.describe_groups, ["g"])["g"]


# --- values that are refused before anything is sent -----------------------------------------------------------------


def test_an_unknown_isolation_level_is_refused() -> None:
    with pytest.raises(ValueError, match="read_uncommitted or read_committed"):
        Driver().run(topics.list_offsets, {}, isolation_level="serializable")


def test_too_few_iterations_are_refused() -> None:
    change = UserScramCredentialUpsertion("u", ScramMechanism.SCRAM_SHA_256, b"secret", iterations=10)
    with pytest.raises(UnacceptableCredentialError, match="4096"):
        Driver().run(security.alter_user_scram_credentials, [change])
    assert "secret" not in repr(change)


def test_a_time_before_1970_is_refused() -> None:
    with pytest.raises(ValueError, match="1970"):
        OffsetSpec.for_timestamp(-5)


def test_a_reset_of_a_group_that_has_nothing_needs_topics() -> None:
    from headrace.protocol.messages.offset_fetch import OffsetFetchResponse, OffsetFetchResponseGroup

    driver = Driver(
        FindCoordinator=lambda request, _: found(request, 1),
        DescribeGroups=lambda request, _: described(request, ErrorCode.GROUP_ID_NOT_FOUND),
        OffsetFetch=lambda request, _: OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g")]),
    )
    with pytest.raises(ResetError, match="name the topics"):
        driver.run(reset_group_offsets, "g", ResetTo.earliest())


def test_a_broker_that_knows_of_no_broker_yet_is_not_believed() -> None:
    """One that was just started may answer so: there are groups and topics all the same."""
    driver = Driver(ListGroups=lambda request, node_id: ListGroupsResponse(groups=[ListedGroup(group_id="g")]))
    known, early = driver.metadata, [MetadataResponse(brokers=[], topics=[])] * 2
    driver.answers["Metadata"] = lambda request, node_id: early.pop() if early else known(request, node_id)
    assert [group.group_id for group in driver.run(groups.list_groups)] == ["g"]
    assert len(driver.paused_s) == 2


def test_a_broker_that_never_knows_of_any_is_an_error() -> None:
    driver = Driver(Metadata=lambda request, node_id: MetadataResponse(brokers=[], topics=[]))
    with pytest.raises(RequestTimedOutError, match="knows of no broker"):
        driver.run(topics.list_topics)


def test_a_broker_is_named_by_a_number() -> None:
    driver = Driver()
    resources = [ConfigResource(ResourceType.BROKER, name) for name in ("one", "²", "9" * 5_000)]
    found = driver.run(configs.describe_configs, resources)
    assert all("named by its number" in str(found.errors[one]) for one in resources)
