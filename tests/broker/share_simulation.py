"""Share groups on a cluster whose brokers are killed and come back: leaders and coordinators move, members lose locks.

    python -m tests.broker.share_simulation FIRST LAST        these seeds, whole
    python -m tests.broker.share_simulation FIRST LAST NAME   with that mistake planted (see `MISTAKES`)

Whatever happens: a record whose acceptance was confirmed is never delivered again, and every record that was written is
accepted in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from unittest import mock

import headrace.aio
from headrace import AcknowledgeType, HeadraceError
from headrace.broker.share_groups.share_partition import SharePartition
from headrace.errors import ErrorCode
from headrace.groups.share.deliveries import Deliveries, RecordState
from headrace.groups.share.state_coordinator import ShareStateCoordinator
from headrace.groups.share.state_records import StoredState
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

from . import raw
from .several import SeveralBrokers, create, run_several
from .sim import PORT

TOPIC, GROUP = "t", "g"
MEMBERS = 3
LOCK_S = 5
#: A fetch waits for half a second, and an answer takes far less than this.
LATE_S = 5.0
TROUBLE_S = 40.0
QUIET_S = 3 * LOCK_S
SETTINGS = {
    "share.coordinator.state.topic.num.partitions": "2",
    "offsets.topic.num.partitions": "2",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": str(LOCK_S * 1000),
    "group.share.assignment.interval.ms": "0",
    "group.share.delivery.count.limit": "10",
}


class BrokenPromiseError(AssertionError):
    """What must never happen."""


@dataclass
class History:
    written: set[int] = field(default_factory=set)
    accepted: dict[int, float] = field(default_factory=dict)  # when that was confirmed
    unsure: set[int] = field(default_factory=set)  # nobody heard what became of it
    last_news: float = 0.0

    def delivered(self, offset: int, now: float) -> None:
        self.last_news = now
        accepted_at = self.accepted.get(offset)
        if accepted_at is not None and now > accepted_at + LATE_S:
            raise BrokenPromiseError(f"offset {offset}, accepted at {accepted_at:.2f}, is delivered at {now:.2f}")

    def confirm(self, offset: int, now: float) -> None:
        """Who was too late hears nothing of it, as in Kafka: what is finished may be acknowledged again."""
        self.accepted.setdefault(offset, now)

    @property
    def is_done(self) -> bool:
        return self.written <= self.accepted.keys() | self.unsure


async def _consume(cluster: SeveralBrokers, number: int, history: History, rng: random.Random) -> None:
    host = cluster.simulation.host(f"member-{number}")
    loop = asyncio.get_running_loop()
    servers = ",".join(f"broker-{node_id}:{PORT}" for node_id in cluster.brokers)
    settings = {
        "bootstrap.servers": servers,
        "group.id": GROUP,
        "share.acknowledgement.mode": "explicit",
        "max.poll.records": 5,
        "request.timeout.ms": 5_000,
    }

    async def run() -> None:
        async with headrace.aio.ShareConsumer(settings, runtime=host.runtime) as consumer:
            consumer.subscribe([TOPIC])
            while True:
                try:
                    records = await consumer.poll(1.0)
                except HeadraceError:
                    continue
                accepts = []
                for record in records:
                    history.delivered(record.offset, loop.time())
                for record in records:
                    kind = AcknowledgeType.RELEASE if rng.random() < 0.1 else AcknowledgeType.ACCEPT
                    consumer.acknowledge(record, kind)
                    if kind is AcknowledgeType.ACCEPT:
                        accepts.append(record.offset)
                if rng.random() < 0.05:
                    await asyncio.sleep(LOCK_S * 1.5)
                try:
                    results = await consumer.commit_sync(20.0)
                except HeadraceError:
                    history.unsure.update(accepts)
                    continue
                if any(results.values()):
                    # Of which records it does not count is not known: an answer may have been lost.
                    history.unsure.update(accepts)
                    continue
                for offset in accepts:
                    history.confirm(offset, loop.time())

    await host.start(run(), name="member")


async def _write(cluster: SeveralBrokers, history: History, until: float) -> None:
    loop = asyncio.get_running_loop()
    number = 0
    while loop.time() < until:
        number += 1
        for broker in cluster.alive:
            state = broker.image.partition(TOPIC, 0)
            if state is not None and state.leader == broker.node_id:
                client = cluster.client(broker.node_id)
                with contextlib.suppress(ConnectionError, TimeoutError, HeadraceError):
                    request = raw.produce_request(TOPIC, 0, raw.batch([b"%d" % number, b"more"]))
                    answer = raw.produced(await client.request(request, raw.PRODUCE_VERSION, 5.0))
                    if answer.error_code == ErrorCode.NONE:
                        history.written |= {answer.base_offset, answer.base_offset + 1}
                break
        await asyncio.sleep(0.2)


async def _hurt(cluster: SeveralBrokers, rng: random.Random, until: float) -> None:
    loop = asyncio.get_running_loop()
    while loop.time() < until:
        await asyncio.sleep(rng.uniform(2, 6))
        victim = rng.choice(list(cluster.brokers))
        cluster.brokers[victim].kill()
        await asyncio.sleep(rng.uniform(0.5, 4))
        await cluster.brokers[victim].start()
        # Another is killed once all have everything again.
        states = [("t", 0), *(("__share_group_state", index) for index in range(2)), ("__consumer_offsets", 0)]
        for topic, index in states:

            def is_whole(topic: str = topic, index: int = index) -> bool:
                state = cluster.alive[0].image.partition(topic, index)
                return state is None or len(state.isr) == len(state.replicas)

            with contextlib.suppress(AssertionError):
                await cluster.until(is_whole, 20.0)


async def _begin_at_the_start(cluster: SeveralBrokers) -> None:
    resource = AlterConfigsResource(
        resource_type=32,
        resource_name=GROUP,
        configs=[AlterableConfig(name="share.auto.offset.reset", config_operation=0, value="earliest")],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    await cluster.client(1).request(request, 1, 30.0)


def play(seed: int) -> History:
    history = History()

    async def main(cluster: SeveralBrokers) -> None:
        rng = cluster.simulation.random_for("trouble")
        loop = asyncio.get_running_loop()
        assert await create(cluster, 1, TOPIC, partitions=1, replicas=3) == ErrorCode.NONE
        await _begin_at_the_start(cluster)
        until = loop.time() + TROUBLE_S
        members = [
            asyncio.ensure_future(_consume(cluster, number, history, random.Random(rng.random())))
            for number in range(MEMBERS)
        ]
        await asyncio.gather(_write(cluster, history, until), _hurt(cluster, rng, until))
        deadline = loop.time() + 200.0
        # Nothing is left once all is accepted, and nothing came for longer than any lock lasts.
        while loop.time() < deadline and not (history.is_done and loop.time() > history.last_news + QUIET_S):
            for member in members:
                if member.done():
                    member.result()
            await asyncio.sleep(0.5)
        for member in members:
            member.cancel()
        await asyncio.gather(*members, return_exceptions=True)
        left = history.written - history.accepted.keys() - history.unsure
        if left:
            raise BrokenPromiseError(
                f"{len(left)} of {len(history.written)} records are never accepted: {sorted(left)[:5]}"
            )

    run_several(main, seed, SETTINGS)
    return history


# --- mistakes ---------------------------------------------------------------------------------------------------------


def _answered_before_it_is_stored() -> contextlib.AbstractContextManager[object]:
    async def store(self: SharePartition, taken: list) -> None:  # type: ignore[type-arg]
        for change, stored in taken:
            self._deliveries.stored(change)  # type: ignore[union-attr]
            stored.set_result(ErrorCode.NONE)

    return mock.patch.object(SharePartition, "_store_these", store)


def _handed_out_twice() -> contextlib.AbstractContextManager[object]:
    def available(self: Deliveries, batch: object) -> list:  # type: ignore[type-arg]
        wanted = (RecordState.AVAILABLE, RecordState.ACQUIRED)
        return [run for run in self._exactly(batch.first, batch.last) if run.state in wanted and run.becomes is None]  # type: ignore[attr-defined]

    def fetch_offset(self: Deliveries) -> int | None:
        return self.start_offset if self._runs else self.end_offset

    return _both(
        mock.patch.object(Deliveries, "_available", available),
        mock.patch.object(Deliveries, "fetch_offset", fetch_offset),
    )


def _accepted_is_forgotten_by_snapshots() -> contextlib.AbstractContextManager[object]:
    real = StoredState.updated

    def updated(self: StoredState, leader_epoch: int, start_offset: int, count: int, batches: object) -> StoredState:
        return real(self, leader_epoch, self.start_offset, count, ())

    return mock.patch.object(StoredState, "updated", updated)


def _rejected_where_released() -> contextlib.AbstractContextManager[object]:
    return mock.patch.object(Deliveries, "_given_back", return_value=RecordState.ARCHIVED)


def _states_lost_in_moves() -> contextlib.AbstractContextManager[object]:
    def serve(self: ShareStateCoordinator, out: object, shard: object, at: object) -> None:
        loader, shard.loader = shard.loader, None  # type: ignore[attr-defined]
        shard.states.update({key: StoredState(state.state_epoch, 0) for key, state in loader.states()})  # type: ignore[attr-defined]

    return mock.patch.object(ShareStateCoordinator, "_serve", serve)


@contextlib.contextmanager
def _both(*patches: contextlib.AbstractContextManager[object]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


MISTAKES = {
    "answered-before-stored": _answered_before_it_is_stored,
    "handed-out-twice": _handed_out_twice,
    "acceptance-forgotten": _accepted_is_forgotten_by_snapshots,
    "released-is-lost": _rejected_where_released,
    "states-lost": _states_lost_in_moves,
}


def main(first: int, last: int, mistake: str | None) -> None:
    failed = []
    for seed in range(first, last + 1):
        with MISTAKES[mistake]() if mistake else contextlib.nullcontext():
            try:
                history = play(seed)
            except BrokenPromiseError as error:
                failed.append(seed)
                print(f"seed {seed}: {error}", flush=True)
            else:
                print(
                    f"seed {seed}: {len(history.accepted)} of {len(history.written)} accepted, "
                    f"{len(history.unsure)} unsure"
                )
    print(f"{last - first + 1 - len(failed)} passed, {len(failed)} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
