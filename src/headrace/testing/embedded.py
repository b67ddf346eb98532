"""A broker inside the test's own process, on a thread with its own event loop: the fastest way to have a Kafka.

with headrace.testing.broker() as kafka:
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.address})

with headrace.testing.broker(security="SASL_SSL") as kafka:
    producer = confluent_kafka.Producer(kafka.client("alice"))
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.broker.broker import Broker
from headrace.runtime import real_runtime

if TYPE_CHECKING:
    from headrace.testing.secured import Secured, SecuredClients

T = TypeVar("T")

# What makes tests quick without making them unlike a real broker. To remove the files of the 50 partitions that hold
# groups' offsets takes longer than all else that a broker does to stop.
TEST_DEFAULTS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
}
CALL_TIMEOUT_S = 60.0


class EmbeddedBroker:
    """A running broker and the loop it runs on."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop, secured: SecuredClients | None = None) -> None:
        self.broker = broker
        self._loop = loop
        self._secured = secured

    @property
    def address(self) -> str:
        host, port = self.broker.addresses[0]
        return f"{host}:{port}"

    @property
    def port(self) -> int:
        return self.broker.addresses[0][1]

    def client(self, user: str = "admin", mechanism: str = "SCRAM-SHA-256") -> dict[str, Any]:
        """A client's settings by Kafka's names, for confluent-kafka and Headrace: with `security`, as that user."""
        if self._secured is None:
            return {"bootstrap.servers": self.address}
        return self._secured.client(self.address, user, mechanism)

    def python_client(self, user: str = "admin", mechanism: str = "SCRAM-SHA-256") -> dict[str, Any]:
        """The same as keywords of kafka-python and aiokafka."""
        if self._secured is None:
            return {"bootstrap_servers": self.address}
        return self._secured.python_client(self.address, user, mechanism)

    def call(self, function: Callable[[Broker], T | Coroutine[Any, Any, T]]) -> T:
        """Run a function on the broker's loop and give its result."""

        async def run() -> T:
            result = function(self.broker)
            if asyncio.iscoroutine(result):
                return await result
            return result

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(CALL_TIMEOUT_S)


@contextlib.contextmanager
def broker(
    directory: str | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    port: int = 0,
    security: str | Secured | None = None,
) -> Iterator[EmbeddedBroker]:
    """Start a broker on a free port, and stop it at the end.

    Data in `directory` is kept, and the broker stops cleanly. Without one it is thrown away, so nothing is synced.
    With `security` ("SSL", "SASL_PLAINTEXT", "SASL_SSL", or a `Secured`) clients show who they are:
    `kafka.client("alice")` has their settings.
    """
    with contextlib.ExitStack() as stack:
        keeps = directory is not None
        if directory is None:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-"))
        secured = None
        if security is not None:
            from headrace.testing.secured import Secured, SecuredClients

            files = stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-security-"))
            wanted = Secured(security) if isinstance(security, str) else security
            secured = SecuredClients(wanted, Path(files))
        settings = {
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "log.dirs": directory,
            **TEST_DEFAULTS,
            **(secured.settings(port) if secured is not None else {}),
            **(overrides or {}),
        }
        started: list[EmbeddedBroker] = []
        failed: list[BaseException] = []
        ready, stop = threading.Event(), threading.Event()
        thread = threading.Thread(
            target=_run, args=(settings, keeps, started, failed, ready, stop, secured), name="headrace-broker"
        )
        thread.start()
        ready.wait()
        if failed:
            thread.join()
            raise failed[0]
        try:
            yield started[0]
        finally:
            stop.set()
            started[0]._loop.call_soon_threadsafe(lambda: None)
            thread.join()
            if failed:
                raise failed[0]


def _run(
    settings: Mapping[str, str],
    keeps: bool,
    started: list[EmbeddedBroker],
    failed: list[BaseException],
    ready: threading.Event,
    stop: threading.Event,
    secured: SecuredClients | None,
) -> None:
    async def main() -> None:
        runtime = real_runtime(syncs=keeps)
        broker = Broker.from_settings(runtime, settings)
        try:
            await broker.start()
            if secured is not None:
                await secured.add_users(broker)
            started.append(EmbeddedBroker(broker, asyncio.get_running_loop(), secured))
            ready.set()
            await asyncio.get_running_loop().run_in_executor(None, stop.wait)
        finally:
            await broker.stop(clean=keeps)
            await runtime.close()

    try:
        asyncio.run(main())
    except BaseException as error:  # noqa: BLE001 - raised again in the thread that asked for the broker
        failed.append(error)
    finally:
        ready.set()
