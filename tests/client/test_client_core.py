"""The common core without sockets: versions, correlation, time-outs, backoff, metadata, starting over."""

from __future__ import annotations

import struct
import weakref
from itertools import pairwise

import pytest

from headrace.client.cluster.core import ANY_NODE, coordinator_key
from headrace.errors import ErrorCode, NetworkError, RequestTimedOutError, UnsupportedVersionError
from headrace.net.connection import ConnectionState
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.topics import TopicPartition

from .fake import CUT, SILENCE, FakeCluster, VirtualClock, World


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def ready(world: World) -> World:
    world.core.refresh_metadata()
    world.run_until(lambda: world.core.view.version > 0)
    return world


def test_the_highest_version_that_both_ends_know_is_used(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock)
    cluster.served[ApiKey.LIST_GROUPS] = (0, 2)
    world = ready(World(cluster))
    call = world.core.submit(1, ListGroupsRequest())
    world.run_until(lambda: call.done)
    assert call.version == 2
    assert call.error is None


def test_an_api_that_the_broker_lacks_is_a_clear_error(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock)
    del cluster.served[ApiKey.LIST_GROUPS]
    world = ready(World(cluster))
    call = world.core.submit(1, ListGroupsRequest())
    world.run_until(lambda: call.done)
    assert isinstance(call.error, UnsupportedVersionError)
    assert "ListGroups" in str(call.error)


@pytest.mark.parametrize("highest", [0, 1, 2, 3])
def test_an_older_broker_is_asked_again_in_a_version_it_has(clock: VirtualClock, highest: int) -> None:
    cluster = FakeCluster(clock)
    cluster.served[ApiKey.API_VERSIONS] = (0, highest)
    world = ready(World(cluster))
    connection = world.core.connection(1) or world.core.connection(-1)
    assert connection is not None
    assert connection.versions[ApiKey.METADATA] == (0, 13)
    asked = [version for _, name, version, _ in cluster.requests if name == "ApiVersions"]
    assert set(asked) == {highest}


def test_a_silent_broker_costs_the_connection_after_the_request_timeout(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock)
    world = ready(World(cluster, request_timeout_ms=2000))
    cluster.script = lambda node, name, request: SILENCE if name == "ListGroups" else None
    first, second = (world.core.submit(1, ListGroupsRequest()) for _ in range(2))
    start = clock.now
    world.run_until(lambda: first.done and second.done)
    assert 1.9 <= clock.now - start < 4
    assert isinstance(first.error, RequestTimedOutError)
    assert isinstance(second.error, RequestTimedOutError)
    cluster.script = lambda node, name, request: None
    again = world.core.submit(1, ListGroupsRequest())
    world.run_until(lambda: again.done)
    assert again.error is None


def test_a_cut_connection_fails_what_is_in_flight_and_is_made_again(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock)
    world = ready(World(cluster))
    cluster.script = lambda node, name, request: CUT if name == "ListGroups" else None
    call = world.core.submit(1, ListGroupsRequest())
    world.run_until(lambda: call.done)
    assert isinstance(call.error, NetworkError)
    assert "ListGroups" in str(call.error)
    cluster.script = lambda node, name, request: None
    again = world.core.submit(1, ListGroupsRequest())
    world.run_until(lambda: again.done)
    assert again.error is None


def test_the_memory_of_a_request_is_free_once_it_is_answered(clock: VirtualClock) -> None:
    """What is sent lies in buffers that are used again: a call that nobody waits for any more must not hold them."""
    world = ready(World(FakeCluster(clock)))

    class Request(ListGroupsRequest):
        """One of which it can be seen when it is gone."""

    request = Request()
    known = weakref.ref(request)
    calls = [world.core.submit(1, request)]
    world.run_until(lambda: calls[0].done)
    assert calls.pop().error is None
    del request
    assert known() is None


def test_reconnecting_backs_off_more_with_every_failure(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock)
    cluster.down = {1}
    world = World(cluster)
    world.core.refresh_metadata()
    opened_at = []
    seen = 0
    while len(opened_at) < 12:
        world.step()
        if cluster.opened > seen:
            seen = cluster.opened
            opened_at.append(clock.now)
    gaps = [later - earlier for earlier, later in pairwise(opened_at)]
    assert 0.03 < gaps[0] < 0.2
    assert all(0.5 < gap < 1.5 for gap in gaps[-4:])


def test_a_call_to_any_node_goes_to_one_that_can_be_reached(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, brokers=3)
    cluster.down = {1, 3}
    world = World(cluster)
    call = world.core.submit(ANY_NODE, MetadataRequest(topics=[]))
    world.run_until(lambda: call.done, 30)
    assert call.error is None


def test_a_call_that_finds_no_broker_says_what_to_check(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock)
    cluster.down = {1}
    world = World(cluster)
    call = world.core.submit(ANY_NODE, MetadataRequest(topics=[]), timeout_ms=3000)
    world.run_until(lambda: call.done)
    assert isinstance(call.error, RequestTimedOutError)
    assert "bootstrap.servers" in str(call.error)
    assert "refused" in str(call.error)


def test_when_every_known_broker_is_gone_the_client_starts_over_from_bootstrap(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, brokers=2)
    world = ready(World(cluster, bootstrap_servers="fake:9001"))
    # The cluster moved: broker 1's id is now behind another address, and only the bootstrap address stays.
    cluster.down = {1, 2}
    for node in (1, 2, -1):
        world.core.disconnect(node, NetworkError("gone"))
    world.run_until(lambda: not world.core._bootstrapped, 60)
    cluster.down = set()
    version = world.core.view.version
    world.run_until(lambda: world.core.view.version > version, 60)


def test_an_answer_for_another_request_closes_the_connection(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock)
    world = ready(World(cluster))
    world.core.ensure_connected(1)
    world.run_until(lambda: world.core.connection(1) is not None)
    connection = world.core.connection(1)
    assert connection is not None
    call = world.core.submit(1, ListGroupsRequest())
    cluster.events.clear()
    world.core.received(connection, struct.pack(">i", 123_456) + bytes(20))
    assert connection.state is ConnectionState.CLOSED
    assert call.done
    assert call.error is not None


def test_a_throttled_client_waits_before_it_sends_again(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock)
    world = ready(World(cluster))
    cluster.script = lambda node, name, request: (
        ListGroupsResponse(throttle_time_ms=3000) if name == "ListGroups" else None
    )
    first = world.core.submit(1, ListGroupsRequest())
    world.run_until(lambda: first.done)
    start = clock.now
    second = world.core.submit(1, ListGroupsRequest())
    world.run_until(lambda: second.done)
    assert clock.now - start >= 2.9


def test_idle_connections_are_closed(clock: VirtualClock) -> None:
    world = ready(World(FakeCluster(clock), connections_max_idle_ms=10_000))
    world.core.ensure_connected(1)
    world.run_until(lambda: world.core.connection(1) is not None)
    world.run_until(lambda: world.core.connection(1) is None, 90)


def test_a_coordinator_has_a_connection_of_its_own(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock)
    world = ready(World(cluster))
    cluster.script = lambda node, name, request: SILENCE if name == "ListGroups" else None
    stuck = world.core.submit(1, ListGroupsRequest())
    call = world.core.submit(coordinator_key(1), MetadataRequest(topics=[]))
    world.run_until(lambda: call.done, 5)
    assert call.error is None
    assert not stuck.done


def test_older_leader_epochs_do_not_overwrite_newer_ones(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, brokers=2, topics={"t": 1})
    cluster.leaders[("t", 0)] = (2, 5)
    world = World(cluster)
    world.core.add_topic("t")
    world.run_until(lambda: "t" in world.core.view.topics)
    cluster.leaders[("t", 0)] = (1, 4)
    version = world.core.view.version
    world.core.refresh_metadata()
    world.run_until(lambda: world.core.view.version > version)
    leader = world.core.view.leader_of("t", 0)
    assert leader is not None
    assert leader.id == 2
    assert not world.core.view.learn_leader(TopicPartition("t", 0), 1, 5)
    assert world.core.view.learn_leader(TopicPartition("t", 0), 1, 6)
    leader = world.core.view.leader_of("t", 0)
    assert leader is not None
    assert leader.id == 1


def test_metadata_is_asked_for_again_when_it_is_old(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock)
    world = ready(World(cluster, metadata_max_age_ms=20_000))
    asked = sum(name == "Metadata" for _, name, _, _ in cluster.requests)
    start = clock.now
    world.run_until(lambda: sum(name == "Metadata" for _, name, _, _ in cluster.requests) > asked, 60)
    assert 18 <= clock.now - start <= 30


def test_closing_ends_every_call(clock: VirtualClock) -> None:
    world = ready(World(FakeCluster(clock)))
    calls = [world.core.submit(1, ListGroupsRequest()), world.core.submit(ANY_NODE, ListGroupsRequest())]
    world.core.close()
    assert all(isinstance(call.error, NetworkError) for call in calls)
    assert world.core.submit(1, ListGroupsRequest()).error is not None


def test_a_top_level_metadata_error_asks_to_start_over(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock)
    world = ready(World(cluster))
    answers = [ErrorCode.REBOOTSTRAP_REQUIRED]

    def script(node: int, name: str, request: object) -> object:
        if name == "Metadata" and answers:
            response = cluster._metadata(request)
            response.error_code = answers.pop()
            return response
        return None

    cluster.script = script
    version = world.core.view.version
    world.core.refresh_metadata()
    world.run_until(lambda: world.core.view.version > version, 60)
    assert not answers
