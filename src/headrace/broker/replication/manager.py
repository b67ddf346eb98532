"""Replication as one broker does it: fetchers for what it follows, proposals for what it leads, a look at who lags.

It costs nothing while every partition has one replica: tasks and connections begin with the first that has more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from headrace.broker.partitions.replicas import Replicas
from headrace.broker.peers import PeerConnection, Peers
from headrace.broker.replication.coming import ComingFollowers
from headrace.broker.replication.fetcher import ReplicaFetcher
from headrace.broker.replication.isr_changes import IsrChanges, IsrCounts
from headrace.broker.replication.leader import LeaderState, Proposal
from headrace.broker.replication.throttles import ReplicationThrottle, Throttles
from headrace.broker.requests.access import BROKER_CLIENT_ID
from headrace.broker.security.inter_broker import InterBroker
from headrace.broker.view import ClusterView
from headrace.cluster.changes import Changes
from headrace.errors import HeadraceError
from headrace.log import LogCut
from headrace.net.node import Node
from headrace.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from headrace.runtime import DiskError, Runtime

if TYPE_CHECKING:
    from headrace.broker.partitions.partition import Partition

logger = logging.getLogger("headrace.broker.replication")

AskController: TypeAlias = Callable[[AlterPartitionRequest], Awaitable[AlterPartitionResponse]]

ASK_AGAIN_S = 0.1
DEFECT_PAUSE_S = 1.0


class _Peer:
    """One leader, over the connection of one fetcher."""

    def __init__(self, peers: Peers, broker_id: int, number: int) -> None:
        self._peers = peers
        self.broker_id = broker_id
        self._lane = PeerConnection.FETCH + number

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        response: FetchResponse = await self._peers.request(self.broker_id, self._lane, request)
        return response

    async def list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        response: ListOffsetsResponse = await self._peers.request(self.broker_id, self._lane, request)
        return response


class ReplicationManager:
    """The surroundings of this broker's partitions."""

    def __init__(
        self,
        runtime: Runtime,
        cluster: ClusterView,
        replicas: Replicas,
        decide: AskController,
        inter_broker: InterBroker,
    ) -> None:
        self._cluster = cluster
        self._replicas = replicas
        self._inter_broker = inter_broker
        self.clock = runtime.clock
        #: Where this broker is the controller for good, it decides by itself.
        self.ask_controller: AskController = decide
        self.peers = Peers(
            runtime,
            self.locate,
            client_id=f"{BROKER_CLIENT_ID}{cluster.node_id}-fetcher",
            request_timeout_ms=cluster.started_with.get_int("replica.socket.timeout.ms"),
            security=inter_broker.security,
        )
        self.throttles = Throttles(cluster, runtime.clock)
        self.coming = ComingFollowers()
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        self._changes = IsrChanges()
        self._proposed: dict[tuple[bytes, int], Partition] = {}
        self._asking: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._is_closed = False

    # --- what partitions and fetchers ask for

    @property
    def isr_counts(self) -> IsrCounts:
        return self._changes.counts

    @property
    def node_id(self) -> int:
        return self._cluster.node_id

    @property
    def broker_epoch_here(self) -> int:
        return self._cluster.broker_epoch

    @property
    def lag_time_max_ms(self) -> float:
        return float(self._cluster.config.get_int("replica.lag.time.max.ms"))

    def now_ms(self) -> float:
        return self.clock.monotonic() * 1000

    def broker_epoch(self, node_id: int) -> int | None:
        found = self._cluster.image.brokers.get(node_id)
        return found.epoch if found is not None and found.is_active else None

    def is_alive(self, node_id: int) -> bool:
        found = self._cluster.image.brokers.get(node_id)
        return found is not None and not found.fenced

    def setting(self, key: str) -> int:
        return self._cluster.config.get_int(key)

    def role_changed(self, partition: Partition) -> None:
        """A partition leads or follows from now on; one that follows is fetched from its leader."""
        if self._is_closed:
            return
        if partition.is_following:
            self._fetcher_of(partition).add(partition)
        elif partition.state is not None:
            self.coming.expect(partition.leadership.replicas)
            if self._looking is None:
                self._looking = asyncio.get_running_loop().create_task(self._look_at_lag())

    @contextlib.asynccontextmanager
    async def cutting(self, partition: Partition, offset: int) -> AsyncIterator[None]:
        replicas = self._replicas
        directories = replicas.directories
        cut = LogCut(partition.key, offset)
        try:
            if directories.begin_cut(cut):
                try:
                    await replicas.change_directories(directories.write_cut, cut)
                except DiskError as error:
                    raise partition.failed(error) from error
            yield
        finally:
            directories.end_cut(cut)

    def propose(self, partition: Partition, leader: LeaderState, proposal: Proposal) -> None:
        key = (partition.log.topic_id or b"", partition.key.partition)
        self._proposed[key] = partition
        self._changes.propose(key, leader, proposal)
        if not self._is_closed and (self._asking is None or self._asking.done()):
            self._asking = asyncio.get_running_loop().create_task(self._ask())

    def follow(self, changes: Changes) -> None:
        """After a change of the metadata: brokers that came, went or were fenced may change who is waited for."""
        if changes.brokers_configured or changes.configured or changes.deleted:
            self.throttles.follow(changes)
        if changes.brokers:
            node_ids = sorted(changes.brokers)
            for partition in self._replicas.partitions.values():
                partition.brokers_changed(node_ids)

    # --- fetchers

    def _fetcher_of(self, partition: Partition) -> ReplicaFetcher:
        source = partition.leadership.leader_id
        number = hash_of(partition.key.topic, partition.key.partition) % self.setting("num.replica.fetchers")
        fetcher = self._fetchers.get((source, number))
        if fetcher is None:
            fetcher = self._fetchers[source, number] = ReplicaFetcher(
                _Peer(self.peers, source, number), _Settings(self)
            )
        return fetcher

    def locate(self, node_id: int) -> Node | None:
        """Where other brokers reach that broker."""
        found = self._cluster.image.brokers.get(node_id)
        return None if found is None else self._inter_broker.node(found)

    # --- in-sync replicas

    async def _ask(self) -> None:
        """Ask the controller as long as there is something to ask, one request at a time."""
        # What this turn of the loop still proposes goes along.
        await asyncio.sleep(0)
        said = ""
        while True:
            request = self._changes.next_request(self.node_id, self._cluster.broker_epoch)
            if request is None:
                return
            try:
                response = await self.ask_controller(request)
            except HeadraceError as error:
                if str(error) != said:
                    logger.warning("the controller does not answer about in-sync replicas: %s", error)
                said = str(error)
                self._changes.unanswered()
                await asyncio.sleep(ASK_AGAIN_S)
                continue
            except asyncio.CancelledError:
                self._changes.unanswered()
                raise
            except Exception:
                # A defect of ours: as long as nobody takes a lagging follower out, whoever waits for it waits on.
                logger.exception("asking the controller about in-sync replicas failed, by a defect: please report it")
                self._changes.unanswered()
                await asyncio.sleep(DEFECT_PAUSE_S)
                continue
            for key in self._changes.answered(response, self.now_ms()):
                # What was answered may be of a former leader epoch, and a proposal of this one wait for its turn.
                is_waiting = key in self._changes
                partition = self._proposed.get(key) if is_waiting else self._proposed.pop(key, None)
                if partition is not None:
                    partition.isr_settled()
            if len(self._changes):
                await asyncio.sleep(ASK_AGAIN_S)

    async def _look_at_lag(self) -> None:
        """Every half of the time that a follower may be behind, so it leaves after one to one and a half times that."""
        while True:
            await asyncio.sleep(self.lag_time_max_ms / 2000)
            for partition in list(self._replicas.partitions.values()):
                if partition.state is not None:
                    try:
                        partition.check_in_sync()
                    except Exception:
                        # A defect of ours: the followers of the others are looked at all the same.
                        logger.exception("%s: who lags cannot be told, by a defect: please report it", partition.key)

    async def close(self) -> None:
        self._is_closed = True
        tasks = [task for task in (self._asking, self._looking) if task is not None]
        for task in tasks:
            task.cancel()
        for fetcher in self._fetchers.values():
            await fetcher.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.peers.close()


class _Settings:
    """What a fetcher asks of its broker."""

    def __init__(self, manager: ReplicationManager) -> None:
        self._manager = manager
        self.node_id = manager.node_id
        self.clock = manager.clock

    @property
    def broker_epoch(self) -> int:
        return self._manager.broker_epoch_here

    @property
    def throttle(self) -> ReplicationThrottle | None:
        return self._manager.throttles.follower

    def setting(self, key: str) -> int:
        return self._manager.setting(key)


def hash_of(topic: str, partition: int) -> int:
    """The same in every run, unlike Python's own: partitions are spread over fetchers by it."""
    return sum(topic.encode()) * 31 + partition
