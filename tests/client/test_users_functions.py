"""Functions that users give to clients: those that a call would not run are refused, and none is dropped in silence."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.waiting import eventually

from headrace import Consumer, Producer, aio
from headrace.config import ConfigError
from headrace.functions import NotRunError, check_has_run, check_plain
from headrace.testing import broker


async def later(*given: Any) -> None:
    raise AssertionError("nobody awaits it")


def one_by_one(*given: Any) -> Iterator[None]:
    yield


class Later:
    async def __call__(self, *given: Any) -> None:
        raise AssertionError("nobody awaits it")


UNRUN = [later, one_by_one, functools.partial(later, 1), Later()]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with broker() as kafka:
        yield kafka.address


@pytest.mark.parametrize("function", UNRUN)
def test_a_function_that_a_call_does_not_run_is_refused_where_it_is_given(function: Any) -> None:
    with pytest.raises(TypeError, match=r"on_delivery takes a plain function, and .* would run nothing"):
        check_plain(function, "on_delivery")
    with pytest.raises(TypeError, match="on_delivery takes a function to call, not 5"):
        check_plain(5, "on_delivery")
    for fine in (None, print, check_plain, lambda: None, Producer, functools.partial(print, 1)):
        check_plain(fine, "on_delivery")


@pytest.mark.parametrize("function", UNRUN)
def test_what_was_given_back_unrun_is_closed_and_named(function: Callable[[int], Any]) -> None:
    with pytest.raises(NotRunError, match=r"the handler gave back .*did not run"):
        check_has_run(function(1), "the handler")
    for fine in (None, 5, [], "text"):
        check_has_run(fine, "the handler")


class Watching:
    """An interceptor that changes nothing."""

    def on_send(self, record: Any) -> None: ...

    def on_acknowledgement(self, metadata: Any, error: Any) -> None: ...


@pytest.mark.parametrize("make", [Producer, aio.Producer])
@pytest.mark.parametrize("function", UNRUN)
@pytest.mark.parametrize("interceptors", [[], [Watching()]])
def test_a_producer_takes_no_callback_that_would_not_run(
    make: Callable[..., Any], function: Any, interceptors: list[Any]
) -> None:
    producer = make({"bootstrap.servers": "127.0.0.1:1", "interceptor.classes": interceptors})
    for send in (producer.send, lambda topic, value, **more: producer.send_batch(topic, [value], **more)):
        with pytest.raises(TypeError, match=r"on_delivery=…\) takes a plain function"):
            send("t", b"x", on_delivery=function)
    if (closing := producer.close()) is not None:
        asyncio.run(closing)


@pytest.mark.parametrize("function", UNRUN)
def test_settings_take_no_function_that_would_not_run(function: Any) -> None:
    class Interceptor:
        def __init__(self) -> None:
            self.on_acknowledgement = self.on_commit = function

        def on_send(self, record: Any) -> Any:
            return record

        on_consume = on_send

    class Partitioner:
        partition = staticmethod(function)

    class Serializer:
        serialize = deserialize = staticmethod(function)

    def refused(make: Callable[..., Any], name: str, value: Any) -> None:
        with pytest.raises(ConfigError, match="would run nothing") as caught:
            make({"bootstrap.servers": "127.0.0.1:1", name: value})
        assert list(caught.value.problems) == [name]

    refused(Producer, "interceptor.classes", [Interceptor()])
    refused(Consumer, "interceptor.classes", [Interceptor()])
    refused(Producer, "partitioner.class", Partitioner())
    for given in (Serializer(), function):
        refused(Producer, "value.serializer", given)
        refused(Consumer, "key.deserializer", given)
    with pytest.raises(ConfigError, match="would run nothing"):
        Producer(
            {
                "bootstrap.servers": "127.0.0.1:1",
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.callback": function,
            }
        )


def test_a_listener_may_be_async_but_no_generator() -> None:
    class Listener:
        on_partitions_revoked = staticmethod(later)
        on_partitions_assigned = staticmethod(one_by_one)

    with Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}) as consumer:
        with pytest.raises(TypeError, match="one_by_one is a generator function"):
            consumer.subscribe(["t"], Listener())  # type: ignore[arg-type]  # that is the mistake
        with pytest.raises(TypeError, match=r"callback=…\) takes a plain function, and later is an `async def`"):
            consumer.commit_async(callback=later)


def test_a_callback_that_gives_back_a_coroutine_is_logged(address: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR), Producer({"bootstrap.servers": address}) as producer:
        producer.send("given-back", b"x", on_delivery=lambda *how: later(*how)).result(30)
        producer.send_batch("given-back", [b"x"], on_delivery=lambda *how: later(*how)).result(30)
        producer.flush()
    assert caplog.text.count("on_delivery gave back a coroutine, which was not awaited: later did not run") == 2


@pytest.mark.parametrize("ending", [StopIteration, StopAsyncIteration, GeneratorExit, ValueError])
def test_a_callback_may_end_in_any_way_and_the_others_are_called(address: str, ending: type[BaseException]) -> None:
    told: list[int] = []

    def tell(number: int, error: Any, metadata: Any) -> None:
        told.append(number)
        if number == 3:
            raise ending

    with Producer({"bootstrap.servers": address, "linger.ms": 100}) as producer:
        for number in range(10):
            producer.send("endings", b"x", partition=0, on_delivery=functools.partial(tell, number))
        producer.flush()
        eventually(lambda: len(told) == 10, "all callbacks")
    assert told == list(range(10))


def test_a_commits_callback_that_gives_back_a_coroutine_is_an_error(address: str) -> None:
    with Producer({"bootstrap.servers": address}) as producer:
        producer.send("committed", b"x").result(30)
    config = {"bootstrap.servers": address, "group.id": "g", "enable.auto.commit": False}
    with Consumer({**config, "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe(["committed"])
        eventually(lambda: consumer.poll(0.2), "the record")
        consumer.commit_async(callback=lambda *how: later(*how))
        with pytest.raises(NotRunError, match="commit_async's callback gave back a coroutine"):
            eventually(lambda: consumer.poll(0.2), "the callback")
