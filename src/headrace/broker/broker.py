"""The broker: one node that serves clients, put together from the other rooms and run on one event loop."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from headrace.broker import startup
from headrace.broker.audit.log import AuditLog
from headrace.broker.authorization.installing import check_rights
from headrace.broker.coordinators.group_service import GroupService
from headrace.broker.coordinators.group_settings import BrokerGroupSettings, values_with_partitions
from headrace.broker.coordinators.producer_ids import ProducerIds
from headrace.broker.coordinators.share_state_service import ShareStateService
from headrace.broker.coordinators.streams_topics import StreamsTopics
from headrace.broker.coordinators.surroundings import CoordinatorSurroundings
from headrace.broker.coordinators.transaction_service import TransactionService
from headrace.broker.coordinators.write_order import batch_bytes_max
from headrace.broker.listeners import ListenerSetting, parse_listeners
from headrace.broker.memory import MemoryBudget
from headrace.broker.metadata.controller_requests import ControllerRequests
from headrace.broker.metadata.directory_reports import DirectoryReports
from headrace.broker.metadata.fetches import MetadataFetches
from headrace.broker.metadata.identity import Identity
from headrace.broker.metadata.membership import ClusterMembership
from headrace.broker.metadata.quorum import Observers, Quorum
from headrace.broker.metadata.service import MetadataService
from headrace.broker.metadata.store_patience import StorePatience
from headrace.broker.metrics import serving as metrics
from headrace.broker.metrics.readings import Readable
from headrace.broker.partitions.checks import Checks
from headrace.broker.partitions.fetch_sessions import SESSION_PARTITION_BYTES, FetchSessions
from headrace.broker.partitions.leaders import Leaders
from headrace.broker.partitions.maintenance import Maintenance, OtherDuties
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.produce_at_once import TurnAppends
from headrace.broker.partitions.replicas import Replicas
from headrace.broker.peers import peers_maker
from headrace.broker.quotas.changes import ChangesCheck
from headrace.broker.quotas.enforcement import ClientQuotas
from headrace.broker.replication.coming import ComingFollowers
from headrace.broker.replication.manager import ReplicationManager
from headrace.broker.replication.throttles import Throttles
from headrace.broker.requests.pipeline import RequestPipeline
from headrace.broker.requests.request_metrics import Times
from headrace.broker.requests.services import Services
from headrace.broker.security.setup import BrokerSecurity
from headrace.broker.security.tokens import DelegationTokens
from headrace.broker.server.acceptor import Acceptor, ConnectionLimits
from headrace.broker.server.descriptors import share_out
from headrace.broker.share_groups.offsets import ShareOffsets
from headrace.broker.share_groups.rooms import ShareRooms
from headrace.broker.share_groups.service import ShareGroupService
from headrace.broker.telemetry.clients import TelemetryClients
from headrace.broker.telemetry.pushed import ClientMetrics
from headrace.broker.telemetry.subscriptions import MetricsSubscriptions
from headrace.broker.view import ClusterView
from headrace.cluster.answers import Answers
from headrace.cluster.broker_config import BrokerConfig
from headrace.cluster.brokers import ProducerIdBlock, Registration
from headrace.cluster.changes import Changes
from headrace.cluster.configs import BrokerLayers
from headrace.cluster.controller import Controller
from headrace.cluster.features import TRANSACTION_VERSION
from headrace.cluster.image import Image
from headrace.cluster.store import Store
from headrace.cluster.store.local import LocalStore
from headrace.cluster.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.config import RawValue
from headrace.errors import HeadraceError
from headrace.groups import GroupConfig, GroupCoordinator
from headrace.log import Log, LogConfig, LogDirectories
from headrace.log.cleaner import CompactionWorker
from headrace.log.partition_metadata import encode_id
from headrace.runtime import Listener, Runtime
from headrace.topics import TopicPartition
from headrace.transactions import TransactionConfig, TransactionCoordinator

log = logging.getLogger("headrace.broker")

T = TypeVar("T")

SHUTDOWN_GRACE_S = 5.0
WAITING_LOGS_RETRY_S = 2.0


class Broker:
    """One node. `start` returns when clients can connect, `stop` when everything is on disk."""

    def __init__(
        self,
        runtime: Runtime,
        config: BrokerConfig,
        *,
        compaction_worker: CompactionWorker | None = None,
        store: Store | None = None,
    ) -> None:
        """`compaction_worker` is where logs are compacted: a thread, unless a process of its own is given.

        `store` is what it shares with other brokers, instead of what the configuration names.
        """
        self.runtime = runtime
        self._shared_store = store
        self.started_with = config
        self._compaction_worker = compaction_worker
        self.listener_settings: list[ListenerSetting] = parse_listeners(config)
        self.addresses: list[tuple[str, int]] = []
        #: Where Prometheus reads the metrics, if they are served.
        self.metrics_address: str | None = None
        self._image = Image()
        memory = self.memory = MemoryBudget.of(config)
        self.pipeline = RequestPipeline(runtime.clock.monotonic, self._image, memory.kept_answers)
        limits = ConnectionLimits.of(config, memory)
        self.acceptor = Acceptor(runtime, self.pipeline, limits, share_out(runtime.descriptors))
        self.security = BrokerSecurity(runtime, config, self.listener_settings, lambda: self.image)
        self.acceptor.security = self.security.listeners
        self.security.tell(self.pipeline.access)
        #: Where batches are looked into, which may take long: beside the disk threads, which others wait for.
        self.checks = Checks(runtime.workers, self.acceptor.used, runtime.clock.monotonic)
        self.fetch_sessions = FetchSessions(
            config.get_int("max.incremental.fetch.session.cache.slots"),
            runtime.rng,
            partitions_max=memory.sessions // SESSION_PARTITION_BYTES,
        )
        # Set by start(), in this order.
        self.directories: LogDirectories
        self.controller: Controller
        self.cluster: ClusterView
        self.leaders: Leaders
        self.turn_appends: TurnAppends
        self.replicas: Replicas
        self.replication: ReplicationManager
        self.metadata: MetadataService
        self.answers: Answers
        self.producer_ids: ProducerIds
        self.groups: GroupService
        self.transactions: TransactionService
        self.share_rooms: ShareRooms
        self.maintenance: Maintenance
        self.quotas: ClientQuotas
        # What is open, in the order in which it was opened.
        self._to_close: list[Callable[[], Awaitable[None]]] = []
        self._listeners: list[Listener] = []
        #: This broker among others; None in a cluster of one.
        self.membership: ClusterMembership | None = None
        self.incarnation = runtime.uuid()
        #: As the controller: how far the others follow.
        self.observers = Observers()
        self.identity = Identity(self.was_replaced)
        self._started = False
        self._has_coordinators = False
        self.is_start_given_up = asyncio.Event()
        self._waiting: asyncio.Task[None] | None = None
        self._directory_reports: DirectoryReports

    @classmethod
    def from_settings(
        cls,
        runtime: Runtime,
        settings: Mapping[str, RawValue],
        *,
        compaction_worker: CompactionWorker | None = None,
        store: Store | None = None,
    ) -> Broker:
        """A broker with Kafka's own settings; wrong values are refused, unknown keys warned of."""
        config = BrokerConfig.parse(settings)
        for name, near in config.unknown().items():
            log.warning("unknown setting %s is ignored%s", name, f"; did you mean {near}?" if near else "")
        inert = config.without_effect()
        if inert:
            log.warning("settings that are accepted, and have no effect here: %s", ", ".join(inert))
        return cls(runtime, config, compaction_worker=compaction_worker, store=store)

    # --- what others look up

    @property
    def image(self) -> Image:
        return self.cluster.image

    @property
    def node_id(self) -> int:
        return self.directories.node_id

    @property
    def cluster_id(self) -> str:
        return self.directories.cluster_id

    @property
    def config(self) -> BrokerConfig:
        """The configuration in effect, with what was changed while it runs."""
        return self.cluster.config

    @property
    def broker_epoch(self) -> int:
        return self.cluster.broker_epoch

    @property
    def out_of_touch(self) -> str | None:
        """Why others may have taken the place of this broker without its knowing; None when it knows."""
        if self.replicas.suspended is not None:
            return self.replicas.suspended
        if self.membership is None:
            return None
        if self.membership.stalls.is_behind:
            return "this broker did not run for a while, and looks what was decided meanwhile"
        if not self.membership.is_in_touch:
            return "neither the store nor the controller has answered this broker for a while"
        return None

    def log_config(self, topic: str) -> LogConfig:
        """The configuration in effect for the logs of a topic."""
        return self.cluster.log_config(topic)

    def partition(self, topic: str, index: int) -> Partition:
        """The partition, or the error that a client gets for one that is not here."""
        return self.replicas.get(topic, index)

    # --- life

    async def start(self) -> None:
        """Open the data, read the metadata, serve the logs, then listen."""
        began = self.runtime.clock.monotonic()
        config = self.started_with
        store = self._shared_store or startup.shared_store(self.runtime, config)
        cluster_id, number = None, None
        patience: StorePatience | None = None
        if store is not None:
            self.security.inter_broker.begin(config)
            found, number = await self.runtime.offload(startup.known_identity, self.runtime, config)
            self._to_close.append(store.close)
            self._started = True
            patience = StorePatience(self.runtime.clock, config, store, self.is_start_given_up)
            cluster_id = await self._opened(patience.open(found))
            if number is None and config.node_id < 0:
                number = await self._opened(self._new_number(store, patience))
                log.info("this broker is given the number %d", number)
        self.directories = await self._opened(
            self.runtime.offload(startup.open_directories, self.runtime, config, cluster_id, number)
        )
        self._started = True
        self.controller = Controller(self.node_id, config, self.runtime.rng, self.runtime.uuid)
        self.controller.own_users = lambda image: self.security.inter_broker.own_users(image, self.runtime)
        self.cluster = ClusterView(self.node_id, self.cluster_id, self.incarnation, self.controller, self._image)
        self.identity.begin(self.cluster)
        files = self.directories.caches.files
        files.resize(self.acceptor.shares.files_beside(0))
        self.acceptor.on_files_max = files.resize
        try:
            is_alone = store is None
            if store is None:
                metadata_log = await self.runtime.offload(
                    startup.open_metadata_log, self.runtime, self.directories, config
                )
                store = LocalStore(self.runtime, metadata_log)
            self.replicas = Replicas(self.runtime, self.node_id, self.directories, self.log_config)
            self.replicas.on_lost = self._tell_of_directories
            self.replicas.holds_number = lambda: self.identity.holds_number
            self.metadata = MetadataService(
                self.runtime, store, self.controller, self.replicas, self.cluster.image, is_shared=not is_alone
            )
            self._directory_reports = DirectoryReports(self.cluster, self.metadata, self.replicas, is_alone=is_alone)
            self.replication = ReplicationManager(
                self.runtime,
                self.cluster,
                self.replicas,
                functools.partial(self.metadata.decide, self.controller.alter_partition),
                self.security.inter_broker,
            )
            self.replicas.surroundings = self.replication
            # The logs are brought in step with the metadata as long as that is followed.
            reports = self._directory_reports
            self._to_close += [self.replicas.close, self.metadata.close, self.replication.close, reports.close]
            self.answers = Answers(self.cluster.image, self.cluster_id)
            self.turn_appends = TurnAppends(self.cluster, self.replicas)
            self.leaders = Leaders(self.cluster, self.replicas, self.answers)
            check_rights(self.pipeline, self.cluster)
            self.pipeline.access.audit = AuditLog(self.runtime.clock)
            self.quotas = ClientQuotas(self.pipeline.access, self.started_with, self.runtime.clock, self.image)
            self.acceptor.connection_pause_s = self.quotas.connection_pause_s
            self.pipeline.limited = ChangesCheck(self.cluster)
            await self._open_metadata(patience)
            self.metadata.on_brokers(self._look_at_brokers)
            self.metadata.follow(self._follow)
            self.metadata.follow(self.replication.follow)
            self.replication.throttles.follow(Changes())
            self.security.start(self.metadata)
            self._to_close.append(self.security.close)
            self.security.follow(self.config)
            await self._listen()
            if patience is None:
                self.answers.controller_id = self.node_id
                await self.metadata.win()
            else:
                await self._join(store, patience)
            loop = asyncio.get_running_loop()
            self.directories.on_offline = functools.partial(_tell, loop, self._directory_failed)
            self.directories.on_log_offline = functools.partial(_tell, loop, self._log_failed)
            data = startup.StartData(
                self.runtime, self.cluster, self.directories, self.metadata, self.log_config, is_alone
            )
            logs = await startup.open_logs(data)
            if self.membership is not None:
                self.membership.stand()
            missing = startup.missing_directories(data, logs)
            listeners = self.security.inter_broker.in_order
            registration = startup.registration(data, listeners, missing, logs)
            self.is_registered(await self._register(registration))
            await startup.raise_epochs(data, logs)
            await self.metadata.follower.open_logs(logs, [encode_id(directory) for directory in missing])
            self._make_waiting_later()
            # Before clients are sent here: nobody is to lead whose log is in a directory that failed.
            await self._directory_reports.tell()
            self._start_services()
            self.pipeline.serve_with(self._services())
            if metrics.is_wanted(config):
                self.metrics_address, close = metrics.begin(self._readable(), config, self.telemetry.pushed)
                self._to_close.append(close)
            self.acceptor.open()
            if self.membership is not None:
                await self.membership.serve()
        except BaseException:
            await self.stop(clean=False)
            raise
        took_ms = (self.runtime.clock.monotonic() - began) * 1000
        partitions = len(self.replicas.partitions)
        log.info("broker %d is ready: %d partitions, started in %.0f ms", self.node_id, partitions, took_ms)

    def _start_services(self) -> None:
        """The coordinators and maintenance: what works on logs, which are open by now."""
        config = self.started_with
        self.producer_ids = ProducerIds(self._reserve_producer_ids)
        values = values_with_partitions(self.cluster)
        settings = self._group_settings = BrokerGroupSettings(self.image, self._config_layers)
        groups = GroupCoordinator(GroupConfig.from_values(values), self.runtime.rng, self.cluster, settings)
        around = CoordinatorSurroundings(
            self.runtime,
            self.cluster,
            self.replicas,
            self.leaders,
            self.identity,
            lambda: self.out_of_touch,
            peers_maker(self.runtime, self.replication.locate, self.node_id, self.security.inter_broker.security),
        )
        self.share_rooms = ShareRooms(around, self.metadata, values, settings)
        self.acceptor.on_connection_lost = self.share_rooms.shares.connection_lost
        self.groups = GroupService(
            around,
            groups,
            config.get_int("offsets.commit.timeout.ms"),
            self.memory.members,
            self.share_rooms.states,
        )
        transactions = TransactionCoordinator(
            TransactionConfig.from_values(values),
            self.producer_ids.take,
            self.cluster,
            self._transaction_version,
            functools.partial(batch_bytes_max, around, TRANSACTION_STATE),
        )
        self.transactions = TransactionService(around, transactions, self.producer_ids, self.groups)
        self.telemetry = TelemetryClients(
            MetricsSubscriptions(lambda: self.image),
            ClientMetrics(self.memory.client_metrics),
            self.runtime.clock,
            self.runtime.rng,
            lambda: self.cluster.config.get_int("telemetry.max.bytes"),
        )
        self._has_coordinators = True
        self._to_close += [self.share_rooms.close, self.groups.close, self.transactions.close]
        self._lead_coordinators()
        self.metadata.follow(self._follow_with_coordinators)
        self.maintenance = Maintenance(
            self.runtime,
            self.cluster,
            self.replicas,
            OtherDuties(self.acceptor.sweep, self.metadata.take_snapshot_if_due),
            self._compaction_worker,
            self.memory.producers,
        )
        self._to_close.append(self.maintenance.stop)
        self.metadata.follow(self._follow_with_cleaner)
        self.maintenance.start()

    def _readable(self) -> Readable:
        return Readable(
            cluster=self.cluster,
            replicas=self.replicas,
            groups=self.groups.coordinator,
            metadata=self.metadata,
            directories=self.directories,
            acceptor=self.acceptor,
            requests=self.pipeline.metrics,
            isr=self.replication.isr_counts,
            cleaner=self.maintenance.cleaner,
            loop_late=Times(),
            now_ms=self.runtime.clock.now_ms,
            listeners=tuple(setting.name for setting in self.listener_settings),
        )

    def _services(self) -> Services:
        """What handlers may name: by type, and by "type | None" where a cluster of one has none."""
        metadata, membership, clock = self.metadata, self.membership, self.runtime.clock
        requests = ControllerRequests(self.cluster_id, metadata, None) if membership is None else membership.requests
        fetches = None if membership is None else MetadataFetches(clock, self.cluster, metadata, membership)
        return {
            Answers: self.answers,
            BrokerSecurity: self.security,
            Checks: self.checks,
            ClusterView: self.cluster,
            ComingFollowers: self.replication.coming,
            ControllerRequests: requests,
            DelegationTokens: self.security.tokens,
            FetchSessions: self.fetch_sessions,
            GroupService: self.groups,
            Leaders: self.leaders,
            LogDirectories: self.directories,
            MetadataFetches | None: fetches,
            MetadataService: metadata,
            Quorum: Quorum(clock, self.cluster, metadata, self.observers),
            Replicas: self.replicas,
            Runtime: self.runtime,
            ShareGroupService: self.share_rooms.shares,
            ShareOffsets: self.share_rooms.offsets,
            ShareStateService: self.share_rooms.state_service,
            StreamsTopics: StreamsTopics(metadata, clock, self._run_on),
            TelemetryClients: self.telemetry,
            Throttles: self.replication.throttles,
            TransactionService: self.transactions,
            TurnAppends: self.turn_appends,
        }

    def _run_on(self, what: Coroutine[Any, Any, None]) -> None:
        """Go on with this beside the requests; the broker waits for it when it stops."""
        self.acceptor.keep(asyncio.get_running_loop().create_task(what))

    async def _opened(self, opening: Awaitable[T]) -> T:
        """What is opened before there is anything else; the store is closed again if that fails."""
        try:
            return await opening
        except BaseException:
            self._started = False
            while self._to_close:
                await self._to_close.pop()()
            raise

    async def _new_number(self, store: Store, patience: StorePatience) -> int:
        reserved = self.started_with.get_int("reserved.broker.max.id")
        return await patience.insist("this broker is given no number", lambda: store.new_number(reserved))

    async def _open_metadata(self, patience: StorePatience | None) -> None:
        if patience is None:
            await self.metadata.open()
        else:
            await patience.insist(f"broker {self.node_id} cannot read its metadata", self.metadata.open)

    def give_up_start(self) -> None:
        """Wait no longer for a store or a controller that `start` waits for; what else it is at goes on."""
        self.is_start_given_up.set()

    async def _join(self, store: Store, patience: StorePatience) -> None:
        """Become one of several brokers."""
        self.membership = ClusterMembership(
            self.runtime,
            self.cluster,
            store,
            self.metadata,
            self.replicas,
            self.identity,
            self.observers,
            self.security.inter_broker,
            self._controller_is,
            self.is_registered,
            self.is_start_given_up,
        )
        self.metadata.ask_controller = self.membership.ask_controller
        # Until a proposal is answered for good, its leader has to know of every copy that was not.
        self.replication.ask_controller = functools.partial(self.membership.ask_controller, once=True)
        self._to_close.append(self.membership.close)
        await self.membership.join(self.security.inter_broker.in_order, patience)

    def _controller_is(self, node_id: int) -> None:
        if self.answers.controller_id != node_id:
            self.answers.controller_id = node_id
            self.pipeline.forget_kept()

    def is_registered(self, broker_epoch: int) -> None:
        """The controller has registered this process, and gives it that epoch."""
        self.cluster.broker_epoch = broker_epoch
        self.identity.look()

    def _look_at_brokers(self) -> None:
        """Brokers have come or gone: whatever was meant for another life of one ends, and so does this one's."""
        self.identity.look()
        self.pipeline.access.broker_listeners = self.security.inter_broker.listeners_of(self.image.brokers)
        self.replication.peers.look_again()
        if self.membership is not None:
            self.membership.peers.look_again()
        if self._has_coordinators:
            self.transactions.look_again()
            self.share_rooms.look_again()

    def was_replaced(self, reason: str) -> None:
        """Another process has this broker's number: do nothing any more."""
        self.replicas.suspend(reason)
        self.metadata.active.resign(reason)
        if self._has_coordinators:
            self._lead_coordinators()
        self.give_up_start()

    async def _register(self, registration: Registration) -> int:
        if self.membership is not None:
            return await self.membership.register(registration)
        return await self.metadata.change(
            lambda image: self.controller.register_broker(image, registration, fenced=False)
        )

    async def _reserve_producer_ids(self) -> ProducerIdBlock:
        if self.membership is not None:
            return await self.membership.reserve_producer_ids()
        return await self.metadata.decide(self.controller.allocate_producer_ids, self.node_id, self.broker_epoch)

    def _directory_failed(self, path: str, reason: str) -> None:
        self.replicas.directory_failed(path, reason)
        self._tell_of_directories()

    def _log_failed(self, failed: Log, reason: str) -> None:
        self.replicas.log_failed(failed, reason)
        self._tell_of_directories()

    def _tell_of_directories(self) -> None:
        self.acceptor.keep(asyncio.get_running_loop().create_task(self._directory_reports.tell()))

    def _make_waiting_later(self) -> None:
        """Partitions whose logs could not be made for want of descriptors are served once there are some."""
        if self._waiting is None and self.replicas.is_waiting:
            self._waiting = asyncio.get_running_loop().create_task(self._make_waiting())

    async def _make_waiting(self) -> None:
        while self.replicas.is_waiting:
            await asyncio.sleep(WAITING_LOGS_RETRY_S)
            try:
                await self.metadata.make_waiting()
            except HeadraceError as error:
                log.error("logs that wait for descriptors could not be made: %s", error)
            except Exception:
                log.exception("logs that wait for descriptors could not be made, by a defect: please report it")
        self._waiting = None

    async def _listen(self) -> None:
        """Bind before the slow part, so that a port in use is said at once; clients wait until we are ready."""
        for setting in self.listener_settings:
            tls = self.security.listeners[setting.name].tls
            listener = await self.runtime.network.listen(
                self.acceptor.connections_of(setting.name),
                setting.host or None,
                setting.port,
                ssl=None if tls is None else tls.context,
                backlog=512,
            )
            self._listeners.append(listener)
            setting.port = listener.addresses[0][1]
            self.addresses.append((setting.host or "localhost", setting.port))

    async def stop(self, *, clean: bool = True) -> None:
        """Stop listening, let requests under way finish for a moment, then close all that is open. Idempotent."""
        if not self._started:
            return
        self._started = False
        if clean and self.membership is not None and self.identity.replaced is None:
            await self.membership.leave()
        for listener in self._listeners:
            listener.close()
        self.acceptor.is_open = False
        deadline = self.runtime.clock.monotonic() + SHUTDOWN_GRACE_S
        while self.acceptor.is_busy and self.runtime.clock.monotonic() < deadline:
            await asyncio.sleep(0.005)
        self.acceptor.close_all("the broker is shutting down")
        if self._waiting is not None:
            self._waiting.cancel()
            await asyncio.gather(self._waiting, return_exceptions=True)
        while self._to_close:
            await self._to_close.pop()()
        self.acceptor.abort_all("the broker is shutting down")
        if clean:
            await self.directories.close_logs_in_parallel()
        await self.runtime.offload(functools.partial(self.directories.close, clean, broker_epoch=self.broker_epoch))
        for listener in self._listeners:
            await listener.wait_closed()

    # --- coordinators

    def _config_layers(self) -> BrokerLayers:
        return BrokerLayers.of(self.image, self.started_with, self.node_id)

    @property
    def _transaction_version(self) -> int:
        return self.image.features.get(TRANSACTION_VERSION, 0)

    def _follow(self, changes: Changes) -> None:
        """After a change of the metadata: new settings count."""
        self.cluster.follow(changes)
        self.security.follow(self.config)
        self.quotas.follow()
        self._make_waiting_later()

    def _follow_with_coordinators(self, changes: Changes) -> None:
        """After a change of the metadata: the coordinators lead what is led here now, and forget deleted topics."""
        self.transactions.coordinator.transaction_version = self._transaction_version
        self._lead_coordinators()
        self.share_rooms.follow(changes)
        deleted = changes.deleted
        if deleted:
            self.groups.topics_deleted({topic.name: topic.topic_id for topic in deleted})
        if changes.groups_configured or changes.brokers_configured:
            self._group_settings.forget()
        has_racks = any(broker.rack is not None for broker in self.image.brokers.values())
        changed = {change.topic.name for change in changes.partitions if change.is_new or has_racks}
        changed.update(topic.name for topic in deleted)
        if changed:
            self.groups.topics_changed(frozenset(changed))

    def _follow_with_cleaner(self, changes: Changes) -> None:
        """After a change of the metadata: what was cleaned of deleted topics is forgotten."""
        for topic in changes.deleted:
            for index in range(len(topic.partitions)):
                self.maintenance.cleaner.forget(TopicPartition(topic.name, index))

    def _lead_coordinators(self) -> None:
        self.groups.follow(self.image.topics.get(CONSUMER_OFFSETS))
        self.transactions.coordinator.offsets_partition_count = self.groups.coordinator.partition_count
        self.transactions.follow(self.image.topics.get(TRANSACTION_STATE))
        self.share_rooms.lead()


def _tell(loop: asyncio.AbstractEventLoop, callback: Callable[[T, str], None], what: T, reason: str) -> None:
    """Call on the loop what a disk thread found out."""
    loop.call_soon_threadsafe(callback, what, reason)
