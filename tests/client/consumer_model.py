"""A model of the consumer: the real cores and drivers against a cluster that does everything wrong, under a seed.

    python -m tests.client.consumer_model [SEEDS] [--from SEED] [--processes 2]

An application polls, iterates, commits, seeks and pauses; its calls are interrupted (`headrace.Consumer`) or cancelled
(`headrace.aio.Consumer`) anywhere, its callbacks raise. Whatever happens: of each partition, records come one after the
other, none left out and none twice, unless a seek, a rebalance, a reset or a truncation that took place says so; none
of a partition that is paused, or that the listener was not told of; after a rebalance they go on where the group's
offset is. What is committed was handed out, and what a commit that succeeded was to cover is committed; positions are
what was handed out. When the cluster is well again, everything there is comes and is committed, every callback was
called, in order, and the group was left. `consumer_mutations` shows that a consumer that does otherwise is found.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import logging
import multiprocessing
import os
import random
import selectors
import sys
import traceback
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from tests.client.consumer.fake_driver import FakeClient, blocking_consumer
from tests.client.consumer.interrupts import Interruption, InterruptionError
from tests.client.consumer.model_cluster import ModelCluster
from tests.client.consumer.model_oracle import BrokenInvariantError, Oracle, RaisedByCallbackError

import headrace.client.consumer.aio as aio_module
from headrace.client.cluster.core import ClientCore
from headrace.client.consumer._base import ConsumerBase
from headrace.client.consumer._chunks import FetchedChunk
from headrace.client.consumer._classic_heartbeats import ClassicHeartbeats
from headrace.client.consumer._classic_membership import ClassicMembership
from headrace.client.consumer._commits import OffsetCommits
from headrace.client.consumer._consumer_heartbeats import ConsumerProtocolHeartbeats
from headrace.client.consumer._consumer_membership import ConsumerMembership
from headrace.client.consumer._fetching import Fetcher
from headrace.client.consumer._subscription import Subscriptions, TopicPartitionState
from headrace.client.consumer.errors import IllegalStateError, RecordDeserializationError
from headrace.client.flows import Task
from headrace.errors import HeadraceError
from headrace.net.connection import Call

_STEPS = 40
_END_S = 900.0


# --- the application --------------------------------------------------------------------------------------------------

Do = Callable[..., Any]


async def application(oracle: Oracle, consumer: Any, call: Do, uses_group: bool) -> None:
    """`call(method, *arguments)` does something of the consumer's, and may be ended from outside."""
    rng, cluster = oracle.rng, oracle.cluster
    if uses_group:
        oracle.owned = set()
        consumer.subscribe(["t"], oracle)
    else:
        consumer.assign(cluster.partitions)
    for _ in range(_STEPS):
        for _ in range(rng.randint(0, 2)):
            cluster.grow()
        if rng.random() < 0.35:
            cluster.happen()
            oracle.say("the cluster changed")
        await _do_something(oracle, consumer, call)
        oracle.check_commits()
    cluster.be_nice()
    oracle.say("nice from now on")
    await _read_the_rest(oracle, call)
    await _end(oracle, call)


async def _end(oracle: Oracle, call: Do) -> None:
    """All of it was handed out, so all of it is committed in the end, by hand or by closing."""
    cluster = oracle.cluster
    if not oracle.auto_commits or oracle.rng.random() < 0.5:
        for tries in range(100):
            try:
                await call("commit_sync", is_hostile=False)
                break
            except HeadraceError as error:
                if tries == 99:
                    raise
                # The rebalance has begun, and has to end first.
                oracle.say(f"in the end: {error!r}")
                await _poll(oracle, _hospitable(call), 1.0)
        found = await call("committed", cluster.partitions, is_hostile=False)
        for name in cluster.partitions:
            committed = cluster.committed.get(name)
            if (None if found[name] is None else found[name].offset) != committed:
                raise BrokenInvariantError(f"{name} is committed at {committed}, but committed() gave {found[name]}")
    await call("close", is_hostile=False)
    oracle.check_commits()
    for name in cluster.partitions:
        # One that was made anew, and has nothing yet, may have no position to commit either.
        if cluster.committed.get(name, 0) != cluster.end(*name):
            raise BrokenInvariantError(
                f"{name} was read to {cluster.end(*name)}, but is committed at {cluster.committed.get(name)}"
            )
    if oracle.owned is not None and cluster.left != cluster.member:
        raise BrokenInvariantError(f"the consumer was closed, but member {cluster.member} did not leave")
    missing = set(range(oracle.expected_callbacks)) - set(oracle.callbacks) - oracle.uncertain
    if missing or oracle.callbacks != sorted(set(oracle.callbacks)):
        raise BrokenInvariantError(f"of {oracle.expected_callbacks} callbacks {oracle.callbacks} were called")


async def _do_something(oracle: Oracle, consumer: Any, call: Do) -> None:
    rng = oracle.rng
    what = rng.random()
    try:
        if what < 0.55:
            await _poll(oracle, call, rng.choice([0, 0.1, 2.0]))
        elif what < 0.65:
            await _iterate(oracle, consumer, call)
        elif what < 0.75:
            await call("commit_sync", timeout=3)
            for name in consumer.assignment():
                oracle.check_committed(name)
        elif what < 0.8:
            number = oracle.expected_callbacks
            try:
                await call("commit_async", callback=oracle.commit_callback())
            except BaseException:
                # Whether it was taken is not known.
                oracle.uncertain.add(number)
                raise
        elif what < 0.87:
            await _seek(oracle, consumer, call)
        elif what < 0.92:
            await _pause_or_resume(oracle, consumer, call)
        elif what < 0.96:
            await call("committed", oracle.cluster.partitions, timeout=3)
        else:
            for name in consumer.assignment():
                oracle.check_position(name, await call("position", name, timeout=3))
    except (InterruptionError, asyncio.CancelledError, TimeoutError, RaisedByCallbackError, IllegalStateError) as error:
        oracle.say(f"ended by {error!r}")
    except HeadraceError as error:
        oracle.say(f"failed: {error!r}")


async def _poll(oracle: Oracle, call: Do, timeout: float) -> int:
    columns = oracle.rng.random() < 0.2
    found = await call("poll_columns" if columns else "poll", timeout)
    count = 0
    if columns:
        for piece in found:
            for offset, value in zip(piece.columns.offsets, piece.columns.values.to_list()):
                oracle.handed_out(piece.topic_partition, offset, value, piece.leader_epoch)
                count += 1
    else:
        for record in found:
            oracle.handed_out_record(record)
            count += 1
    return count


async def _iterate(oracle: Oracle, consumer: Any, call: Do) -> None:
    await call("iterate", oracle.rng.randint(1, 20))


async def _seek(oracle: Oracle, consumer: Any, call: Do) -> None:
    for name in consumer.assignment():
        offset = oracle.rng.randint(0, max(0, oracle.handed.get(name, 0)))
        offset = min(offset, oracle.cluster.end(*name))
        try:
            await call("seek", name, offset)
        except BaseException:
            # Before or after: both may be.
            oracle.sought(name, offset)
            oracle.forget(name)
            oracle.doubtful.add(name)
            raise
        oracle.say(f"sought {name} {offset}")
        oracle.sought(name, offset)
        return


async def _pause_or_resume(oracle: Oracle, consumer: Any, call: Do) -> None:
    names, what = list(consumer.assignment()), oracle.rng.choice(["pause", "resume"])
    # Ended in the middle, it may be done or not.
    oracle.paused -= set(names)
    await call(what, names)
    oracle.say(f"{what} {names}")
    if what == "pause":
        oracle.paused |= set(names)


async def _read_the_rest(oracle: Oracle, call: Do) -> None:
    cluster = oracle.cluster
    until = cluster.clock.now + _END_S
    while True:
        try:
            names = await call("assignment", is_hostile=False)
            await call("resume", list(names), is_hostile=False)
            oracle.paused.clear()
            ends = {}
            for name in names:
                position = await call("position", name, timeout=30, is_hostile=False)
                oracle.check_position(name, position)
                ends[name] = position == cluster.end(*name)
            is_settled = oracle.owned is None or not cluster.is_rebalancing
            if is_settled and oracle.owned is not None:
                # A join that was answered is a rebalance too, until it is through: what is committed then is refused.
                metadata = await call("group_metadata", is_hostile=False)
                is_settled = metadata.generation_id == cluster.generation
            if is_settled and len(names) == len(cluster.partitions) and all(ends.values()):
                break
            await _poll(oracle, _hospitable(call), 1.0)
        except RaisedByCallbackError:
            pass
        except RecordDeserializationError as error:
            if error.__cause__ is None or not isinstance(error.__cause__, RaisedByCallbackError):
                raise
        except HeadraceError as error:
            oracle.say(f"at the end: {error!r}")
            # What is lost has no position until poll() joins again.
            with contextlib.suppress(HeadraceError):
                await _poll(oracle, _hospitable(call), 1.0)
        if cluster.clock.now > until:
            raise BrokenInvariantError(f"not all came within {_END_S} s: {names} {ends}, next {oracle.next}")
    for name in cluster.partitions:
        expected = oracle.next.get(name)
        if expected is not None and not oracle._is_gap(name, expected, cluster.end(*name)):
            raise BrokenInvariantError(f"{name}: everything from {expected} to {cluster.end(*name)} never came")


def _hospitable(call: Do) -> Do:
    return lambda *arguments, **options: call(*arguments, is_hostile=False, **options)


# --- the drivers ------------------------------------------------------------------------------------------------------


_CHANGES: list[tuple[type, str]] = [
    (TopicPartitionState, "append"),
    (Subscriptions, "move_to_end"),
    (Subscriptions, "assign"),
    (FetchedChunk, "advance_to"),
    (Fetcher, "next_piece"),
    (Fetcher, "take_to"),
    (Fetcher, "take_back"),
    (Fetcher, "_drop"),
    (Fetcher, "_send_to"),
    (Fetcher, "_take"),
    (ConsumerBase, "_settle"),
    (OffsetCommits, "_send_queued"),
    (OffsetCommits, "run_callbacks"),
    (ClassicMembership, "check"),
    (ClassicMembership, "_lose"),
    (ClassicMembership, "rebalance"),
    (ClassicMembership, "_prepare"),
    (ClassicMembership, "_complete"),
    (ClassicMembership, "_tell"),
    (ClassicHeartbeats, "start"),
    (ClassicHeartbeats, "moved"),
    (ClassicHeartbeats, "forget"),
    (Task, "_step"),
    (Task, "resume"),
]
"""Where things are changed that depend on one another."""

_CHANGES_OF_CONSUMER_PROTOCOL: list[tuple[type, str]] = [
    *((of, name) for of, name in _CHANGES if of not in (ClassicMembership, ClassicHeartbeats)),
    (ConsumerMembership, "check"),
    (ConsumerMembership, "_lose"),
    (ConsumerMembership, "rebalance"),
    (ConsumerMembership, "_reconcile"),
    (ConsumerMembership, "_tell"),
    (ConsumerProtocolHeartbeats, "join"),
    (ConsumerProtocolHeartbeats, "owns"),
    (ConsumerProtocolHeartbeats, "subscribe"),
    (ConsumerProtocolHeartbeats, "moved"),
    (ConsumerProtocolHeartbeats, "forget"),
]


def _interruption(rng: random.Random, protocol: str) -> Interruption:
    """At any place; or at one of those where most would be left half done."""
    if rng.random() < 0.5:
        of, name = rng.choice(_CHANGES_OF_CONSUMER_PROTOCOL if protocol == "consumer" else _CHANGES)
        return Interruption(int(rng.expovariate(1 / 2)) + 1, within=getattr(of, name))
    # Few places or many: a poll of what is there has hundreds, one that joins the group has thousands.
    return Interruption(int(rng.expovariate(1 / rng.choice([100, 300, 1000]))) + 1)


def run_blocking(oracle: Oracle) -> None:
    rng = oracle.rng
    oracle.is_blocking = True
    with blocking_consumer(oracle.cluster, **oracle.config()) as consumer:

        async def call(method: str, *arguments: Any, is_hostile: bool = True, **options: Any) -> Any:
            interruption = (
                _interruption(rng, oracle.protocol) if is_hostile and rng.random() < 0.5 else contextlib.nullcontext()
            )
            if method == "iterate":
                return iterate(*arguments, interruption)
            with interruption:
                return getattr(consumer, method)(*arguments, **options)

        def iterate(wanted: int, interruption: Any) -> None:
            with interruption:
                for number, record in enumerate(consumer, 1):
                    oracle.handed_out_record(record, is_new=False)
                    if number >= wanted:
                        break

        # An endless topic: iterating ends when there is something, so there is.
        original = type(consumer)._next_records
        idle = 0

        def next_records(self: Any) -> Any:
            nonlocal idle
            oracle.cluster.grow()
            found = original(self)
            idle = idle + 1 if found is None else 0
            if idle > 20:
                # All of it is paused, or somebody else's.
                raise InterruptionError
            return found

        with patch.object(type(consumer), "_next_records", next_records):
            drive(application(oracle, consumer, call, rng.random() < 0.8))


def drive(flow: Coroutine[Any, Any, None]) -> None:
    """Nothing in it waits for a loop."""
    try:
        flow.send(None)
    except StopIteration:
        return
    raise AssertionError("this was not to wait")


class _VirtualSelector(selectors.BaseSelector):
    """Nothing ever arrives; waiting moves the clock."""

    def __init__(self, cluster: ModelCluster) -> None:
        self.cluster = cluster
        self._map: dict[Any, Any] = {}

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or timeout > 3600:
            raise BrokenInvariantError("nobody waits for anything")
        # A little in any case: times that differ by less than a number can say would be waited for for ever.
        self.cluster.clock.now += max(0.000001, timeout)
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> Any:
        self._map[fileobj] = key = selectors.SelectorKey(fileobj, 0, events, data)
        return key

    def unregister(self, fileobj: Any) -> Any:
        return self._map.pop(fileobj)

    def get_map(self) -> Any:
        return self._map


class FakeAsyncClient:
    """What `headrace.aio.Consumer` asks of an `AsyncClient`."""

    def __init__(self, cluster: ModelCluster, config: Any) -> None:
        self.cluster = cluster
        self.core = ClientCore(config, cluster.clock, random.Random(5), cluster)
        cluster.client = self.core
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def submit(self, node_id: int | None, request: Any, on_done: Any = None, **options: Any) -> Call:
        call = self.core.submit(node_id, request, on_done, **options)
        self.schedule()
        return call

    def schedule(self) -> None:
        self._at(0.0)

    def _at(self, seconds: float) -> None:
        if self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _tick(self) -> None:
        due = self.core.tick()
        due = min(due, self.cluster.release() - self.cluster.clock.now)
        if self.cluster.events:
            self.cluster.events.popleft()()
            due = 0.0
        self._at(max(0.0, due) + 0.0001)

    async def close(self) -> None:
        self._closed = True
        self.core.close()
        if self._timer is not None:
            self._timer.cancel()


def run_async(oracle: Oracle) -> None:
    rng, cluster = oracle.rng, oracle.cluster
    loop = asyncio.SelectorEventLoop(_VirtualSelector(cluster))
    loop.time = cluster.clock.monotonic  # type: ignore[method-assign]  # the loop's time is the cluster's
    runtime: Any = SimpleNamespace(clock=cluster.clock, rng=random.Random(7))

    async def main() -> None:
        consumer = aio_module.Consumer(runtime=runtime, **oracle.config())

        async def call(method: str, *arguments: Any, is_hostile: bool = True, **options: Any) -> Any:
            if method == "iterate":
                made: Any = iterate(*arguments)
            else:
                made = getattr(consumer, method)(*arguments, **options)
            if not asyncio.iscoroutine(made):
                return made
            if not is_hostile or rng.random() < 0.5:
                return await made
            task = asyncio.ensure_future(made)
            for _ in range(int(rng.expovariate(1 / 6))):
                await asyncio.sleep(0)
            if rng.random() < 0.3:
                await asyncio.sleep(rng.random())
            if not task.done():
                task.cancel()
            return await task

        async def iterate(wanted: int) -> None:
            async with asyncio.timeout(30):
                async for record in consumer:
                    oracle.handed_out_record(record, is_new=False)
                    wanted -= 1
                    if wanted <= 0:
                        break
                    if wanted % 5 == 0:
                        await asyncio.sleep(0)
                    cluster.grow()

        await application(oracle, consumer, call, rng.random() < 0.8)

    with patch.object(aio_module, "AsyncClient", lambda config, *_, **__: FakeAsyncClient(cluster, config)):
        try:
            loop.run_until_complete(main())
        finally:
            loop.close()


def run(seed: int, lines: int = 25, protocol: str = "classic") -> str | None:
    """What went wrong with this seed, if anything did, and that many lines of what happened before."""
    rng = random.Random(seed)
    oracle = Oracle(rng, protocol)
    try:
        (run_blocking if seed % 2 else run_async)(oracle)
    except Exception:  # noqa: BLE001 - whatever it was, it is the finding
        tail = "\n".join(oracle.log[-lines:])
        return f"seed {seed}:\n{tail}\n{traceback.format_exc(limit=-12)}"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("seeds", type=int, nargs="?", default=1000)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--stop", action="store_true", help="at the first seed that fails")
    parser.add_argument("--protocol", choices=["classic", "consumer"], default="classic", help="of the group")
    chosen = parser.parse_args()
    if "PYTHONHASHSEED" not in os.environ:
        # The order of sets is part of what a seed stands for.
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
    logging.disable(logging.CRITICAL)
    sys.setswitchinterval(1e-5)
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    failed = 0
    # An interruption while a generator is being closed is reported there, and goes no further.
    sys.unraisablehook = lambda _: None
    with multiprocessing.get_context("fork").Pool(chosen.processes) as pool:
        for seed, found in zip(seeds, pool.imap(functools.partial(run, protocol=chosen.protocol), seeds, chunksize=4)):
            if found is not None:
                failed += 1
                print(found, flush=True)
                if chosen.stop:
                    break
            if (seed - chosen.first + 1) % 1000 == 0:
                print(f"{seed - chosen.first + 1} seeds, {failed} failed", flush=True)
    print(f"{chosen.seeds} seeds from {chosen.first}: {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()


__all__ = ["FakeClient", "run"]
