"""What counts as an attempt of a producer, and in which order batches are sent again."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.client.errors import DeliveryTimeoutError
from headrace.errors import ErrorCode, NetworkError, RequestTimedOutError
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from headrace.protocol.messages.sasl_handshake import SaslHandshakeResponse

from .fake import SILENCE, FakeCluster, VirtualClock, World


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def throttle(cluster: FakeCluster, throttle_ms: int) -> None:
    """The next produce request is answered, and says for how long no other may be sent."""
    left = [throttle_ms]

    def script(node: int, name: str, request: Any) -> Any:
        if name != "Produce" or not left:
            return None
        answer = cluster._produce(node, request, 13)
        answer.throttle_time_ms = left.pop()
        return answer

    cluster.script = script


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_throttle_longer_than_the_request_timeout_is_waited_out_and_is_no_attempt(
    clock: VirtualClock, idempotent: bool
) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    retries = {} if idempotent else {"retries": 0}
    world = World(cluster, request_timeout_ms=1000, enable_idempotence=idempotent, **retries)
    throttle(cluster, 10_000)
    world.deliver([world.send("t", b"a")])
    until = clock.now + 10
    held_back = world.send("t", b"b")
    world.deliver([held_back])
    assert held_back.exception() is None
    assert clock.now >= until - 0.001
    assert cluster.values("t") == [b"a", b"b"]
    assert world.producer.metrics.record_retries == 0


def test_nothing_is_encoded_for_a_broker_that_throttles(clock: VirtualClock) -> None:
    """Or requests would be there before their time, with batches that records could still be added to."""
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster, linger_ms=0)
    throttle(cluster, 10_000)
    world.deliver([world.send("t", b"a")])
    later = [world.send("t", b"b")]
    world.settle()
    assert world.core.in_flight(1) == 0
    later.append(world.send("t", b"c"))
    requests = world.producer.metrics.requests
    world.deliver(later)
    assert world.producer.metrics.requests == requests + 1, "both in one request"


def test_who_waits_in_vain_for_a_broker_that_throttles_is_told_so(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster)
    throttle(cluster, 10_000)
    world.deliver([world.send("t", b"a")])
    call = world.core.submit(1, ListGroupsRequest(), timeout_ms=2000)
    world.run_until(lambda: call.done)
    assert isinstance(call.error, RequestTimedOutError)
    assert "throttles" in str(call.error)
    assert "no broker could be reached" not in str(call.error)


def test_a_session_that_is_not_renewed_is_no_attempt(clock: VirtualClock) -> None:
    """The record waited for the renewal, and was not sent."""
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster, enable_idempotence=False, retries=0)
    world.authenticate()
    refusals: list[Any] = []

    def script(node: int, name: str, request: Any) -> Any:
        if name == "SaslHandshake":
            return refusals.pop() if refusals else SaslHandshakeResponse(mechanisms=["PLAIN"])
        if name == "SaslAuthenticate":
            return SaslAuthenticateResponse(auth_bytes=b"", session_lifetime_ms=60_000)
        return None

    cluster.script = script
    world.deliver([world.send("t", b"a")])
    clock.now += 59
    refusals.append(SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE))
    again = world.send("t", b"b")
    world.deliver([again])
    assert refusals == []
    assert again.exception() is None
    assert cluster.values("t") == [b"a", b"b"]


@pytest.mark.parametrize("in_flight", [1, 5])
@pytest.mark.parametrize("idempotent", [True, False])
def test_records_of_a_batch_that_is_split_keep_their_order(
    clock: VirtualClock, idempotent: bool, in_flight: int
) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    cluster.message_max_bytes = 300
    world = World(
        cluster, enable_idempotence=idempotent, max_in_flight_requests_per_connection=in_flight, batch_size=1000
    )
    values = [b"%03d" % i * 5 for i in range(100)]
    first = [world.send("t", value) for value in values[:60]]
    world.settle()
    world.deliver(first + [world.send("t", value) for value in values[60:]])
    assert world.producer.metrics.splits > 2
    assert cluster.values("t") == values


class SlowSockets(FakeCluster):
    """Takes no bytes of Produce requests while `is_full`."""

    is_full = False

    def flush_connection(self, connection: Any) -> None:
        if not self.is_full:
            super().flush_connection(connection)


def test_without_acknowledgements_a_record_is_delivered_when_it_has_gone_out(clock: VirtualClock) -> None:
    """Or the end of a producer would cut off what its socket had no room for yet."""
    cluster = SlowSockets(clock, topics={"t": 1})
    world = World(cluster, acks=0, enable_idempotence=False)
    world.deliver([world.send("t", b"a")])
    cluster.is_full = True
    delivery = world.send("t", b"b")
    wait = world.producer.flush()
    world.settle()
    assert not delivery.done()
    assert not wait.is_done
    cluster.is_full = False
    cluster.flush_connection(world.core.connection(1))
    world.deliver([delivery])
    assert wait.is_done
    assert cluster.values("t") == [b"a", b"b"]


def test_without_acknowledgements_what_has_not_gone_out_is_sent_again(clock: VirtualClock) -> None:
    cluster = SlowSockets(clock, topics={"t": 1})
    world = World(cluster, acks=0, enable_idempotence=False, linger_ms=0)
    world.deliver([world.send("t", b"a")])
    cluster.is_full = True
    delivery = world.send("t", b"b")
    world.settle()
    cluster.is_full = False
    world.core.disconnect(1, NetworkError("cut"))
    world.deliver([delivery])
    assert delivery.exception() is None
    assert cluster.values("t") == [b"a", b"b"]


def test_without_acknowledgements_a_socket_that_takes_nothing_is_given_up_in_time(clock: VirtualClock) -> None:
    cluster = SlowSockets(clock, topics={"t": 1})
    world = World(cluster, acks=0, enable_idempotence=False, linger_ms=0, request_timeout_ms=1000)
    world.deliver([world.send("t", b"a")])
    cluster.is_full = True
    delivery = world.send("t", b"b")
    world.settle()
    opened, start = cluster.opened, clock.now
    world.run_until(lambda: cluster.opened > opened)
    assert 1 <= clock.now - start < 2
    cluster.is_full = False
    world.deliver([delivery])
    assert cluster.values("t") == [b"a", b"b"]


def test_what_is_sent_again_behind_younger_records_is_given_up_in_its_own_time(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster, enable_idempotence=False, linger_ms=0, request_timeout_ms=20_000, delivery_timeout_ms=20_000)
    world.deliver([world.send("t", b"warm-up")])
    cluster.script = lambda node, name, request: SILENCE if name == "Produce" else None
    start = clock.now
    old = world.send("t", b"old")
    world.settle()
    clock.now += 10
    young = world.send("t", b"young")
    world.settle()
    connection = world.core.connection(1)
    assert connection is not None
    call = connection.in_flight[0]
    answer = cluster._produce(1, call.request, call.version)
    answer.responses[0].partition_responses[0].error_code = ErrorCode.NOT_ENOUGH_REPLICAS
    cluster._answer(connection, answer, call.version, call.correlation_id)
    world.deliver([old])
    assert 20 <= clock.now - start < 21
    assert isinstance(old.exception(), DeliveryTimeoutError)
    assert not young.done()
