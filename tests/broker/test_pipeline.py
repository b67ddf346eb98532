"""The steps that every request passes: their order, what refuses it at each of them, and what is counted."""

from __future__ import annotations

import asyncio
import pkgutil
import struct
from typing import Any

import pytest

from headrace.broker.requests.access import ANONYMOUS
from headrace.broker.requests.dispatch import CloseConnectionError, RequestContext
from headrace.broker.requests.kept_answers import KEPT_BYTES_MAX, REQUEST_BYTES_MAX, KeptAnswers
from headrace.broker.requests.request_metrics import ApiMetrics, Times
from headrace.errors import ErrorCode
from headrace.protocol import codec
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

from . import raw
from .played import World, run

pytestmark = pytest.mark.usefixtures("large_segments")

METADATA_VERSION, API_VERSIONS_VERSION = 9, 2
ASKING = (MetadataRequest(topics=None), METADATA_VERSION)
WAITING = (raw.fetch_request("t", 0, 1, max_wait_ms=5_000), raw.FETCH_VERSION)


def answers(world: World, cls: type, version: int) -> list[Any]:
    """What has been written so far, as answers of one kind."""
    found = []
    data = bytes(world.transport.written)
    while data:
        size = struct.unpack_from(">i", data)[0]
        found.append(codec.decode_response(cls, version, data[4 : 4 + size])[1])
        data = data[4 + size :]
    return found


class AllowsAll:
    rules_version = 1

    def verdict(self, *asked: Any) -> bool:
        return True


class OverQuota:
    """Has no room, and wants three seconds' pause after everything."""

    consumed_max = None
    changes = None

    def has_room(self, produced: int, consumed: int) -> bool:
        return False

    def take(self, produced: int, consumed: int, seconds: float) -> None:
        raise AssertionError("there was no room")

    def throttle_s(self, produced: int, consumed: int, seconds: float) -> float:
        return 3.0

    def held_back_s(self, consumed: int) -> float:
        return 3.0


def metrics(world: World, api_key: ApiKey) -> ApiMetrics:
    return world.broker.pipeline.metrics[api_key]


def replace_handler(world: World, api_key: ApiKey, function: Any) -> None:
    functions = world.broker.pipeline.functions
    functions[api_key] = function, functions[api_key][1]


def test_the_steps_come_in_their_order() -> None:
    async def scenario(world: World) -> None:
        pipeline = world.broker.pipeline
        steps: list[str] = []

        def who(context: RequestContext, request: Any) -> None:
            assert context.principal == ANONYMOUS
            assert isinstance(request, MetadataRequest)
            context.connection.identify("User:alice")
            steps.append("who")

        def may(context: RequestContext, request: Any) -> None:
            steps.append(f"may {context.principal}")

        def limited(context: RequestContext, request: Any) -> None:
            steps.append("limited")

        def handler(request: Any, context: RequestContext) -> MetadataResponse:
            steps.append("run")
            return MetadataResponse()

        pipeline.who, pipeline.may, pipeline.limited = who, may, limited
        pipeline.access.meter_of = lambda principal, client_id: OverQuota()
        replace_handler(world, ApiKey.METADATA, handler)
        world.send(ASKING)
        assert steps == ["who", "may User:alice", "limited", "run"]
        assert len(answers(world, MetadataResponse, METADATA_VERSION)) == 1

    run(scenario)


def test_what_cannot_be_decoded_closes_the_connection() -> None:
    async def scenario(world: World) -> None:
        frame = raw.frame(*ASKING)
        for bad in (struct.pack(">i", 3) + b"abc", frame[:-3], b"\x00\x00\x00\x0a\x7f\xff" + bytes(8)):
            world.send_bytes(struct.pack(">i", len(bad) - 4) + bad[4:])
            assert world.transport.closed == "closed"
            world.lose()
            world.connect()
        assert world.broker.pipeline.malformed == 3
        assert metrics(world, ApiKey.METADATA).count == 0

    run(scenario)


def test_one_who_is_not_known_is_closed_without_an_answer() -> None:
    async def scenario(world: World) -> None:
        def who(context: RequestContext, request: Any) -> None:
            raise CloseConnectionError("say first who you are")

        world.broker.pipeline.who = who
        world.send(ASKING)
        assert world.transport.closed == "closed"
        assert world.connection.close_reason == "say first who you are"
        assert world.transport.written == b""
        assert (metrics(world, ApiKey.METADATA).count, metrics(world, ApiKey.METADATA).errors) == (1, 1)

    run(scenario)


@pytest.mark.parametrize("step", ["who", "may"])
def test_a_request_that_is_refused_is_answered_and_not_run(step: str) -> None:
    async def scenario(world: World) -> None:
        def refuse(context: RequestContext, request: Any) -> ApiVersionsResponse:
            return ApiVersionsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

        def never(*_: Any) -> Any:
            raise AssertionError("it was refused")

        setattr(world.broker.pipeline, step, refuse)
        if step == "who":
            world.broker.pipeline.may = never
        replace_handler(world, ApiKey.API_VERSIONS, never)
        world.send((ApiVersionsRequest(), API_VERSIONS_VERSION))
        (answer,) = answers(world, ApiVersionsResponse, API_VERSIONS_VERSION)
        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert (metrics(world, ApiKey.API_VERSIONS).count, metrics(world, ApiKey.API_VERSIONS).errors) == (1, 1)
        assert world.transport.closed == ""

    run(scenario)


def test_a_client_that_is_throttled_is_answered_at_once_and_then_not_heard_for_a_while() -> None:
    async def scenario(world: World) -> None:
        world.broker.pipeline.access.meter_of = lambda principal, client_id: OverQuota()
        world.send(ASKING)
        (answer,) = answers(world, MetadataResponse, METADATA_VERSION)
        assert answer.throttle_time_ms == 3000
        assert world.connection.is_reading_paused
        world.broker.pipeline.access.meter_of = None
        world.send(ASKING)
        await asyncio.sleep(2.5)
        assert len(answers(world, MetadataResponse, METADATA_VERSION)) == 1
        await asyncio.sleep(1)
        assert [one.throttle_time_ms for one in answers(world, MetadataResponse, METADATA_VERSION)] == [3000, 0]
        assert not world.connection.is_reading_paused
        assert metrics(world, ApiKey.METADATA).throttled == 1
        assert 2.9 < metrics(world, ApiKey.METADATA).queue.total_s < 3.1

    run(scenario)


def test_a_connection_that_is_lost_while_its_client_is_throttled_leaves_nothing_behind() -> None:
    async def scenario(world: World) -> None:
        world.broker.pipeline.access.meter_of = lambda principal, client_id: OverQuota()
        world.send(ASKING, ASKING)
        world.lose()
        await asyncio.sleep(4)
        assert metrics(world, ApiKey.METADATA).count == 1

    run(scenario)


def test_a_defect_of_a_handler_costs_its_connection_and_is_counted(failures: list[str]) -> None:
    async def scenario(world: World) -> None:
        def broken(*_: Any) -> Any:
            raise ZeroDivisionError("a defect")

        replace_handler(world, ApiKey.METADATA, broken)
        world.send(ASKING)
        assert world.transport.closed == "aborted"
        assert (metrics(world, ApiKey.METADATA).count, metrics(world, ApiKey.METADATA).errors) == (1, 1)

    run(scenario)
    (failure,) = failures
    assert "a defect" in failure


def test_what_is_counted_of_an_answer() -> None:
    async def scenario(world: World) -> None:
        found = metrics(world, ApiKey.PRODUCE)
        count, errors = found.count, found.errors
        request_bytes, response_bytes = found.request_bytes, found.response_bytes
        good = raw.produce_request("t", 0, raw.batch([b"x"]))
        world.send((good, raw.PRODUCE_VERSION))
        assert (found.count - count, found.errors - errors) == (1, 0)
        assert found.request_bytes - request_bytes == len(raw.frame(good, raw.PRODUCE_VERSION)) - 4
        world.send((raw.produce_request("nowhere", 0, raw.batch([b"x"])), raw.PRODUCE_VERSION))
        assert (found.count - count, found.errors - errors) == (2, 1)
        silent = raw.produce_request("t", 0, raw.batch([b"x"]), acks=0)
        assert found.response_bytes - response_bytes == len(world.transport.written)
        world.send((silent, raw.PRODUCE_VERSION))
        assert (found.count - count, found.errors - errors) == (3, 1)
        assert found.response_bytes - response_bytes == len(world.transport.written)
        # The simulated clock stands still while the loop works, so nothing took any time.
        assert found.queue.total_s == found.local.total_s == 0

    run(scenario)


def test_what_a_request_waits_for_is_counted_apart_from_what_the_broker_does() -> None:
    async def scenario(world: World) -> None:
        world.send(WAITING, ASKING)
        await asyncio.sleep(6)
        waited, behind = metrics(world, ApiKey.FETCH), metrics(world, ApiKey.METADATA)
        assert waited.count == behind.count == 1
        assert 4.9 < waited.remote.total_s < 5.1
        assert waited.local.total_s < 0.1
        assert 4.9 < behind.queue.total_s < 5.1
        assert behind.remote.total_s == 0
        # 5 s are between 2**22 and 2**23 microseconds.
        assert waited.remote.buckets[23] == sum(waited.remote.buckets) == 1

    run(scenario)


def test_the_time_to_send_ends_when_the_client_has_taken_the_answer() -> None:
    async def scenario(world: World) -> None:
        world.transport.is_full = True
        world.send(ASKING)
        await asyncio.sleep(2)
        assert metrics(world, ApiKey.METADATA).send.total_s == 0
        world.transport.is_full = False
        world.connection.resume_writing()
        world.send(ASKING)
        assert 1.9 < metrics(world, ApiKey.METADATA).send.total_s < 2.1
        assert sum(metrics(world, ApiKey.METADATA).send.buckets) == 2

    run(scenario)


def topics_told(world: World) -> list[list[str | None]]:
    return [[topic.name for topic in one.topics] for one in answers(world, MetadataResponse, METADATA_VERSION)]


def test_an_answer_that_follows_from_the_metadata_is_made_once() -> None:
    async def scenario(world: World) -> None:
        made = 0
        handler, _ = world.broker.pipeline.functions[ApiKey.METADATA]

        def counting(*args: Any) -> Any:
            nonlocal made
            made += 1
            return handler(*args)

        replace_handler(world, ApiKey.METADATA, counting)
        world.broker.pipeline._routes.clear()
        world.send(ASKING, ASKING)
        assert (made, topics_told(world)) == (1, [["t"], ["t"]])
        ids = [
            struct.unpack_from(">i", world.transport.written, at)[0]
            for at in (4, len(world.transport.written) // 2 + 4)
        ]
        assert ids == [1, 1]
        world.send((raw.create_topics_request({"u": 1}), raw.CREATE_TOPICS_VERSION))
        await asyncio.sleep(1)
        world.transport.written.clear()
        world.send(ASKING, ASKING)
        assert (made, topics_told(world)) == (2, [["t", "u"], ["t", "u"]])
        assert metrics(world, ApiKey.METADATA).count == 4
        # As soon as anyone is checked, no answer is anyone else's.
        world.broker.pipeline.access.authorizer = AllowsAll()
        world.send(ASKING)
        assert made == 3

    run(scenario)


def test_an_answer_that_tells_an_error_is_made_anew_each_time() -> None:
    async def scenario(world: World) -> None:
        unknown = MetadataRequest(topics=[MetadataRequestTopic(name="u")], allow_auto_topic_creation=False)
        world.send((unknown, METADATA_VERSION), (unknown, METADATA_VERSION))
        assert metrics(world, ApiKey.METADATA).errors == 2
        route = world.broker.pipeline._routes[ApiKey.METADATA << 16 | METADATA_VERSION]
        assert route.kept is not None
        assert not route.kept._answers

    run(scenario)


def test_kept_answers_are_bounded_all_together_and_each_listener_has_its_own() -> None:
    kept = KeptAnswers()
    routes: list[Any] = ["one version", "another"]
    route = routes[0]
    assert kept.find(route, ("A", None), b"q", 1) is None
    kept.keep(route, ("A", None), b"q", bytes(8) + b"answer", 1)
    assert kept.find(route, ("A", None), b"q", 1) == b"answer"
    assert kept.find(route, ("B", None), b"q", 1) is None
    assert kept.find(routes[1], ("A", None), b"q", 1) is None
    kept.keep(route, ("A", None), bytes(REQUEST_BYTES_MAX + 1), bytes(8) + b"answer", 1)
    assert kept.find(route, ("A", None), bytes(REQUEST_BYTES_MAX + 1), 1) is None
    kept.keep(route, ("A", None), b"late", bytes(8) + b"of an earlier image", 0)
    assert kept.find(route, ("A", None), b"late", 1) is None
    for number in range(40):
        kept.keep(routes[number % 2], ("A", None), b"%d" % number, bytes(KEPT_BYTES_MAX // 16), 1)
        assert sum(map(len, kept._answers.values())) <= KEPT_BYTES_MAX
    assert kept.find(route, ("A", None), b"39", 2) is None
    assert not kept._answers


def test_all_versions_keep_their_answers_within_one_bound() -> None:
    async def scenario(world: World) -> None:
        names = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False)
        world.send((names, METADATA_VERSION), (names, METADATA_VERSION - 1))
        kept = {id(route.kept) for route in world.broker.pipeline._routes.values() if route.kept is not None}
        assert len(kept) == 1

    run(scenario)


def test_a_quantile_is_the_upper_end_of_its_bucket() -> None:
    times = Times()
    for microseconds in (1, 3, 3, 100):
        times.add(microseconds / 1e6)
    assert times.quantile_us(0.25, 4) == 2
    assert times.quantile_us(0.75, 4) == 4
    assert times.quantile_us(1.0, 4) == 128
    assert times.quantile_us(0.5, 8) == 0, "half of them took no time at all"


def test_api_versions_looks_for_no_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        def no_more(*_: Any) -> Any:
            raise AssertionError("the handlers are loaded once, when the broker is made")

        monkeypatch.setattr(pkgutil, "iter_modules", no_more)
        world.send((ApiVersionsRequest(), API_VERSIONS_VERSION))
        (answer,) = answers(world, ApiVersionsResponse, API_VERSIONS_VERSION)
        # What brokers ask of each other is nothing for clients.
        told = [handler for handler in world.broker.pipeline.handlers.values() if not handler.between_brokers]
        assert len(answer.api_keys) == len(told) < len(world.broker.pipeline.handlers)

    run(scenario)


def test_versions_that_a_client_makes_up_are_not_remembered() -> None:
    async def scenario(world: World) -> None:
        for version in range(100, 400):
            header = struct.pack(">hhih", ApiKey.API_VERSIONS, version, 7, -1)
            world.send_bytes(struct.pack(">i", len(header)) + header)
        found = answers(world, ApiVersionsResponse, 0)
        assert [one.error_code for one in found] == [ErrorCode.UNSUPPORTED_VERSION] * 300
        assert len(world.broker.pipeline._routes) < 20

    run(scenario)


def test_who_sends_much_at_once_waits_for_those_who_send_little() -> None:
    async def scenario(world: World) -> None:
        many, connection, transport = 200, world.connection, world.transport
        world.send_bytes(raw.frame(*ASKING) * many)
        before = len(answers(world, MetadataResponse, METADATA_VERSION))
        assert before < many
        world.connect()
        world.send(ASKING)
        assert len(answers(world, MetadataResponse, METADATA_VERSION)) == 1
        world.lose()
        world.connection, world.transport = connection, transport
        await asyncio.sleep(1)
        assert len(answers(world, MetadataResponse, METADATA_VERSION)) == many

    run(scenario)
