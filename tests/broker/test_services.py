"""Handlers name the services that they need, and the broker's table has all of them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import pytest

from headrace.broker.requests.dispatch import RequestContext, load_handlers
from headrace.broker.requests.handler import AT_ONCE_OWN, HANDLER_OWN
from headrace.broker.requests.services import UnknownServiceError, bound
from headrace.protocol.api import api
from headrace.testing.embedded import broker


class Clock:
    def __init__(self, hour: int) -> None:
        self.hour = hour


@dataclass(frozen=True, slots=True)
class Room:
    clock: Clock
    bell: str | None


def hour_of(request: str, context: object, clock: Clock) -> str:
    return f"{request} at {clock.hour}"


async def hour_in(request: str, context: object, room: Room, clock: Clock) -> tuple[int, str | None]:
    return room.clock.hour + clock.hour, room.bell


def test_a_service_is_given_by_its_type() -> None:
    assert bound(hour_of, {Clock: Clock(7)}, 2)("up", None) == "up at 7"
    assert bound(hour_of, {Clock: Clock(8)}, 2)("up", None) == "up at 8"  # one broker has nothing of another's


def test_a_dataclass_is_made_of_services() -> None:
    async_function = bound(hour_in, {Clock: Clock(7), str | None: None}, 2)
    assert inspect.iscoroutinefunction(async_function)
    waited = async_function("up", None)
    with pytest.raises(StopIteration) as ended:
        waited.send(None)
    assert ended.value.value == (14, None)


def test_what_the_table_does_not_have_is_an_error_at_start() -> None:
    with pytest.raises(UnknownServiceError, match=r"hour_of wants .*Clock.*, which the table"):
        bound(hour_of, {}, 2)
    with pytest.raises(UnknownServiceError, match=r"Room wants"):
        bound(hour_in, {Clock: Clock(7)}, 2)


def test_every_handler_finds_its_services() -> None:
    with broker() as kafka:
        known = kafka.call(lambda inside: inside.pipeline.functions)
    handlers = load_handlers()
    assert set(known) == set(handlers)
    for api_key, handler in handlers.items():
        function, at_once = known[api_key]
        for found, own in ((function, HANDLER_OWN), (at_once, AT_ONCE_OWN)):
            given = list(inspect.signature(found).parameters.values())[own:] if found is not None else []
            assert all(one.default is not inspect.Parameter.empty for one in given)
        request, context = list(inspect.signature(handler.function).parameters.values())[:HANDLER_OWN]
        assert (request.name, context.name) == ("request", "context")
        # What is only passed on may be a request of any kind.
        is_forwarded = handler.function.__module__.endswith(".forwarded")
        expected = "Any" if is_forwarded else api(handler.api_key).request.__name__
        assert (request.annotation, context.annotation) == (expected, RequestContext.__name__)
