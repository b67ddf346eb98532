"""A broker's life among others: in the store as long as it lives, perhaps the controller, known to it, heard of by it.

The store says who is alive (`Store.members`) and who is the controller (`Store.seat`). Everything else a broker tells
the controller by requests: BrokerRegistration gives it its epoch, BrokerHeartbeat unfences it when it has come as far
as its own registration, and lets it go when it wants to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from headrace.broker.listeners import ListenerSetting
from headrace.broker.metadata.absent_brokers import AbsentBrokers
from headrace.broker.metadata.controller_requests import ControllerRequests
from headrace.broker.metadata.fetcher import MetadataFetcher
from headrace.broker.metadata.identity import Identity
from headrace.broker.metadata.quorum import Observers
from headrace.broker.metadata.service import ASK_TIMEOUT_S, MetadataService
from headrace.broker.metadata.stalls import Stalls
from headrace.broker.metadata.store_patience import REGISTRATION_TIMEOUT, Patience, StorePatience
from headrace.broker.partitions.replicas import Replicas
from headrace.broker.peers import PeerConnection, Peers
from headrace.broker.requests.access import BROKER_CLIENT_ID
from headrace.broker.requests.refusals import tells
from headrace.broker.security.inter_broker import InterBroker
from headrace.broker.view import ClusterView
from headrace.cluster.brokers import ProducerIdBlock, Registration
from headrace.cluster.features import check_supported
from headrace.cluster.image import InconsistentMetadataError
from headrace.cluster.store import (
    Seat,
    SessionLostError,
    Store,
    StoreError,
    StoreMember,
    StoreRefusedError,
)
from headrace.errors import (
    DuplicateBrokerRegistrationError,
    ErrorCode,
    HeadraceError,
    KafkaStorageError,
    NetworkError,
    NotControllerError,
    RequestTimedOutError,
    error_for,
)
from headrace.net.node import Node
from headrace.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from headrace.protocol.messages.alter_partition import AlterPartitionRequest
from headrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from headrace.protocol.messages.broker_registration import BrokerRegistrationRequest, Feature
from headrace.protocol.messages.broker_registration import Listener as RegisteredListener
from headrace.runtime import Runtime
from headrace.runtime.letting_go import let_go

log = logging.getLogger("headrace.broker.metadata.membership")

LEAVE_TIMEOUT_S: Final = 10.0
_RETRY_S: Final = 0.1
_OF_ALL: Final = -1  # no broker
_REFUSED_RETRY_S_MAX: Final = 2.0
#: How long the controller may need to decide something before it lets others try, at least.
_POWERLESS_S: Final = 30.0
#: How a broker is refused whose number is another's.
_OF_ANOTHER_LIFE: Final = (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.DUPLICATE_BROKER_REGISTRATION)
#: Longer than a fetch of the metadata waits.
_HEARD_S_MAX: Final = 1.0


class _PowerlessError(HeadraceError):
    """This broker is the controller, and does not come to decide anything."""


class ClusterMembership:
    """This broker in a cluster of several."""

    def __init__(
        self,
        runtime: Runtime,
        cluster: ClusterView,
        store: Store,
        metadata: MetadataService,
        replicas: Replicas,
        identity: Identity,
        observers: Observers,
        inter_broker: InterBroker,
        controller_is: Callable[[int], None],
        registered: Callable[[int], None],
        is_start_given_up: asyncio.Event,
    ) -> None:
        """`controller_is` is told who the controller is (-1: nobody is), `registered` the epoch of this process."""
        self._cluster = cluster
        self._store = store
        self._metadata = metadata
        self._replicas = replicas
        self._identity = identity
        self._inter_broker = inter_broker
        self._controller_is, self._registered = controller_is, registered
        self._is_start_given_up = is_start_given_up
        self._clock = runtime.clock
        config = cluster.started_with
        self._heartbeat_s = config.get_int("broker.heartbeat.interval.ms") / 1000
        self._registration_s = config.get_int(REGISTRATION_TIMEOUT) / 1000
        self._session_s = config.get_int("broker.session.timeout.ms") / 1000
        # A store may be silent for as long as a session lasts, and more than once in one decision.
        self._powerless_s = max(_POWERLESS_S, 4 * config.get_int("zookeeper.session.timeout.ms") / 1000)
        self._balance_s = float(config.get_int("leader.imbalance.check.interval.seconds"))
        self.incarnation = cluster.incarnation
        self.member = StoreMember(cluster.node_id, self.incarnation)
        self.seat: Seat | None = None
        self._absent = AbsentBrokers(
            self._clock,
            store,
            metadata,
            grace_s=min(self._heartbeat_s, self._session_s),
            grace_after_outage_s=self._session_s,
        )
        #: How this broker follows another that is the controller.
        self.fetcher = MetadataFetcher(cluster, metadata, self)
        #: As the controller: how far the others follow.
        self.observers = observers
        #: Answers what brokers ask, where this one is the controller.
        self.requests = ControllerRequests(cluster.cluster_id, self._metadata, self)
        self.peers = Peers(
            runtime,
            self._locate,
            client_id=f"{BROKER_CLIENT_ID}{cluster.node_id}-control",
            request_timeout_ms=int(ASK_TIMEOUT_S * 1000),
            security=inter_broker.security,
        )
        # Well before anyone could take this broker for dead.
        self.stalls = Stalls(self._clock, self._session_s / 4, self._see_decided)
        self._heard_s = min(_HEARD_S_MAX, self._session_s / 3)
        self._registration: Registration | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._reading: set[asyncio.Future[None]] = set()
        self._is_fenced = True
        self._beat_due = asyncio.Event()
        self._changed = asyncio.Event()
        # Those who wait for an answer of a controller, by what is done when another is known.
        self._asking: dict[asyncio.Future[None], Seat] = {}
        self._local: dict[type, Callable[[Any], Awaitable[Any]]] = {
            BrokerRegistrationRequest: self.requests.register,
            BrokerHeartbeatRequest: self.requests.heartbeat,
            AllocateProducerIdsRequest: self.requests.allocate_producer_ids,
            AlterPartitionRequest: self._alter_partition,
        }

    # --- coming

    async def join(self, listeners: Sequence[ListenerSetting], patience: StorePatience) -> None:
        """Let others know of this broker, by the first of its listeners and by all of them."""
        first = listeners[0]
        addresses = tuple((one.name, one.advertised_host, one.public_port) for one in listeners)
        self.member = StoreMember(
            self._cluster.node_id, self.incarnation, first.advertised_host, first.public_port, addresses
        )
        what = f"broker {self.member.node_id} cannot register with the store"
        await patience.insist(what, lambda: self._store.register(self.member))

    def stand(self) -> None:
        """Stand for election whenever there is no controller, and know who is.

        Not before the logs are open: that may take long, and meanwhile nobody who asks this broker is answered.
        """
        self._start(self._contend())

    def _start(self, work: Any) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def register(self, registration: Registration) -> int:
        """Be registered with the controller, which is asked until it does so; this broker's epoch."""
        self._registration = registration
        patience = Patience(self._clock, self._registration_s, REGISTRATION_TIMEOUT, self._is_start_given_up)
        what = f"broker {registration.node_id} is not registered by the controller"
        return await patience.insist(what, lambda: self._register(registration, max(_RETRY_S, patience.left_s)))

    async def _register(self, registration: Registration, timeout_s: float) -> int:
        request = BrokerRegistrationRequest(
            broker_id=registration.node_id,
            cluster_id=self._cluster.cluster_id,
            incarnation_id=registration.incarnation_id,
            listeners=[
                RegisteredListener(name=x.name, host=x.host, port=x.port, security_protocol=x.security_protocol)
                for x in registration.listeners
            ],
            features=[
                Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, low, high in registration.features
            ],
            rack=registration.rack,
            log_dirs=list(registration.directories),
            previous_broker_epoch=registration.stopped_in_epoch,
        )
        response = await self.ask_controller(request, timeout_s=timeout_s)
        if response.error_code:
            if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
                check_supported(self._metadata.image, registration.node_id, registration.features)
            why = error_for(response.error_code)
            raise error_for(response.error_code, f"the controller refuses it ({why.code.name}): {why}")
        epoch: int = response.broker_epoch
        return epoch

    async def serve(self) -> None:
        """All logs are open: tell the controller from now on, and return once clients are sent here."""
        self._metadata.follower.start(self.fetcher)
        self._start(self._beat())
        self._start(self.stalls.watch())
        deadline = self._clock.monotonic() + self._registration_s
        while self._is_fenced and not self._is_start_given_up.is_set():
            if self._clock.monotonic() > deadline:
                log.warning("broker %d is still fenced; it serves when the controller lets it", self.member.node_id)
                return
            await self.changed(_RETRY_S)

    @property
    def is_in_touch(self) -> bool:
        """Whether this broker would know if another had taken its place.

        It would while its session cannot be over. Then it has the word of the controller; and as the controller that of
        most brokers, which still fetch from it. So all go on when the store is away for all.
        """
        now, metadata = self._clock.boottime(), self._metadata
        if now < self._store.sure_until or len(metadata.image.brokers) == 1:
            return True
        return self._has_word(now - self._heard_s)

    def _has_word(self, since: float) -> bool:
        """Whether the controller has told what was decided before then; for the controller: nobody else decides."""
        is_active = self._metadata.active.is_active
        return self._is_followed(since) if is_active else self._metadata.follower.heard_at > since

    def _is_followed(self, since: float) -> bool:
        """Whether most brokers have taken this one for the controller since then."""
        heard_at, brokers = self.observers.heard_at, self._metadata.active.image.brokers
        others = [node_id for node_id, one in brokers.items() if not one.fenced and node_id != self.member.node_id]
        following = sum(heard_at.get(node_id, float("-inf")) > since for node_id in others)
        return following >= len(others) / 2 and not self.observers.know_another  # more than half, with this one

    async def _see_decided(self, before: float) -> None:
        """Know all that was decided before then: by the word of the controller, or of the store."""
        reading = asyncio.ensure_future(self._metadata.follower.catch_up())
        self._reading.add(reading)
        reading.add_done_callback(self._was_read)
        while not reading.done():
            if self._has_word(before):
                return
            await asyncio.wait([reading], timeout=_RETRY_S)
        reading.result()

    def _was_read(self, reading: asyncio.Future[None]) -> None:
        """Perhaps nobody waits for it any more."""
        self._reading.discard(reading)
        if not reading.cancelled():
            reading.exception()

    # --- going

    async def leave(self) -> None:
        """Hand over what this broker leads, as far as there is someone to hand it to."""
        deadline = self._clock.monotonic() + LEAVE_TIMEOUT_S
        while self._clock.monotonic() < deadline:
            try:
                response = await self.ask_controller(self._heartbeat(want_shut_down=True), timeout_s=LEAVE_TIMEOUT_S)
            except HeadraceError as error:
                log.warning("the controller could not be told that this broker stops: %s", error)
                return
            if response.should_shut_down or response.error_code:
                return
            await asyncio.sleep(_RETRY_S)

    async def close(self) -> None:
        tasks, self._tasks = [*self._tasks, *self._reading], []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.peers.close()

    # --- the controller's seat

    @property
    def controller_id(self) -> int:
        return -1 if self.seat is None else self.seat.member.node_id

    def _seat_is(self, seat: Seat | None) -> None:
        self.seat = seat
        self.peers.look_again()
        self._controller_is(self.controller_id)
        self._tell()

    async def changed(self, timeout_s: float | None = None) -> None:
        """Wait until another may be the controller, or something else is new of this broker."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), timeout_s)

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        for moved, seat in self._asking.items():
            if self.seat != seat and not moved.done():
                moved.set_result(None)

    async def _contend(self) -> None:
        """Be the controller, or know who is, for as long as this broker lives."""
        said, pause_s = "", _RETRY_S
        while self._identity.replaced is None:
            try:
                epoch = await self._store.elect(self.member)
                if epoch is None:
                    seat = await self._store.seat()
                    self._seat_is(seat)
                    said, pause_s = "", _RETRY_S
                    if seat is not None:  # or it is gone already, and perhaps nobody else is left to stand
                        await self._until_lost(self._store.seat(seat))
                    continue
                self.observers.forget()
                # Who was alive when this broker was the controller before says nothing of now.
                self._absent.forget()
                await self._take_office(epoch)
                former = self.seat
                self._seat_is(Seat(epoch, self.member))
                said, pause_s = "", _RETRY_S
                await self._rule(epoch, former)
            except (_PowerlessError, InconsistentMetadataError) as error:
                await self._give_way(str(error))
            except SessionLostError as error:
                await self._reregister(str(error))
            except HeadraceError as error:
                if str(error) != said:
                    log.warning("who is the controller is not known for now: %s", error)
                said = str(error)
                self._metadata.active.resign(str(error))
                await asyncio.sleep(pause_s)
                if isinstance(error, (StoreRefusedError, KafkaStorageError)):
                    # That does not pass so soon. A store that is away has been waited for already.
                    pause_s = min(2 * pause_s, _REFUSED_RETRY_S_MAX)
            except Exception as error:
                log.exception("what this broker does as the controller failed, by a defect: please report it")
                await self._give_way(repr(error))
            self._seat_is(None)

    async def _take_office(self, epoch: int) -> None:
        try:
            async with asyncio.timeout(self._powerless_s):
                await self._metadata.take_office(epoch)
        except TimeoutError:
            words = f"elected for epoch {epoch}, and cannot decide anything after {self._powerless_s:g} s"
            # What takes long everywhere, a store with very much in it, is waited for longer the next time.
            self._powerless_s *= 2
            raise _PowerlessError(words) from None

    async def _give_way(self, reason: str) -> None:
        """Others could decide, if this broker had not the seat, which it has for as long as its session lives."""
        log.error("this broker gives up being the controller, and lets others be it: %s", reason)
        self._metadata.active.resign(reason)
        self._seat_is(None)
        try:
            await self._store.leave_seat()
            async with asyncio.timeout(self._session_s):
                await self._until_lost(self._store.seat(None))
        except TimeoutError:
            pass  # nobody else is there to be it
        except StoreError:
            await asyncio.sleep(_RETRY_S)

    async def _until_lost(self, waiting: Awaitable[object]) -> None:
        """Wait for something in the store, or for the end of the session."""
        found = asyncio.ensure_future(waiting)
        lost = asyncio.ensure_future(self._store.lost())
        try:
            await asyncio.wait([found, lost], return_when=asyncio.FIRST_COMPLETED)
            if found.done():
                found.result()
            else:
                raise SessionLostError("the store says that this broker's session is over")
        finally:
            await let_go(found, lost)

    async def _reregister(self, reason: str) -> None:
        """The session is over, and others take this broker for dead: come back as the same one.

        Until it has, and knows what was decided without it, it leads nothing.
        """
        log.warning("this broker leads nothing until it is registered again: %s", reason)
        self._metadata.active.resign(reason)
        self._seat_is(None)
        replicas = self._replicas
        replicas.suspend("the session of this broker with the store is over; it registers again")
        said, pause_s = "", _RETRY_S
        while self._identity.replaced is None:
            try:
                await self._store.register(self.member)
                await self._metadata.follower.catch_up()
                if self._identity.replaced is None:
                    replicas.resume()
                return
            except HeadraceError as error:
                if str(error) != said:
                    log.warning("this broker could not register again, and goes on trying: %s", error)
                said = str(error)
            except Exception:
                log.exception("this broker could not register again, by a defect: please report it")
            await asyncio.sleep(pause_s)
            # A store that refuses at once, as one whose password was changed does, is not asked without end.
            pause_s = min(2 * pause_s, _REFUSED_RETRY_S_MAX)

    # --- as the controller

    def is_alive(self, node_id: int, incarnation: bytes) -> bool:
        """Whether that life of a broker has a session, as far as the controller here knows."""
        return self._absent.is_alive(node_id, incarnation)

    async def holder(self, node_id: int) -> StoreMember | None:
        """Which life of that broker has a session with the store."""
        return (await self._store.members()).get(node_id)

    async def _tell_former(self, former: Seat) -> None:
        """Let the controller before this one know that it is none: it may be cut off from the store alone."""
        with contextlib.suppress(HeadraceError):
            await self.fetcher.ask(former, self._metadata.active.epoch, self._session_s)

    async def _rule(self, epoch: int, former: Seat | None) -> None:
        """Fence whoever is gone, until another is the controller."""
        active = self._metadata.active
        telling = asyncio.ensure_future(_nothing() if former is None else self._tell_former(former))
        absent = self._absent
        absent.living = await self._store.members()
        watching = asyncio.ensure_future(self._store.members(absent.living))
        lost = asyncio.ensure_future(self._store.lost())
        over = asyncio.ensure_future(active.over.wait())
        unseated = asyncio.ensure_future(self._store.seat(Seat(epoch, self.member)))
        balance_at = self._clock.monotonic() + self._balance_s
        # What it decides of brokers, and of all. Nobody else who is gone waits for that.
        deciding: dict[int, asyncio.Future[None]] = {}
        decided_at = self._clock.monotonic()
        try:
            while active.epoch == epoch:
                if not deciding:
                    decided_at = self._clock.monotonic()
                elif self._clock.monotonic() - decided_at > self._powerless_s:
                    raise _PowerlessError(f"nothing has been decided for {self._powerless_s:g} s")
                wait_s = absent.fence(deciding)
                if self._clock.monotonic() >= balance_at and not deciding:
                    balance_at = self._clock.monotonic() + self._balance_s
                    deciding[_OF_ALL] = asyncio.ensure_future(self._balance())
                left_s = max(_RETRY_S, min(balance_at - self._clock.monotonic(), self._powerless_s))
                wait_s = left_s if wait_s is None else min(wait_s, left_s)
                events: list[asyncio.Future[Any]] = [watching, lost, over, unseated, *deciding.values()]
                await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED, timeout=wait_s)
                if lost.done():
                    raise SessionLostError("the store says that this broker's session is over")
                if unseated.done():
                    # It reads nothing that others append, so it must not go on in the belief that nobody does.
                    unseated.result()
                    active.resign("the store names another as the controller, or nobody")
                    return
                if watching.done():
                    absent.living = watching.result()
                    watching = asyncio.ensure_future(self._store.members(absent.living))
                for whom in [whom for whom, decided in deciding.items() if decided.done()]:
                    decided_at = self._clock.monotonic()
                    deciding.pop(whom).result()
        finally:
            await let_go(watching, lost, over, unseated, telling, *deciding.values())

    async def _balance(self) -> None:
        """Let those lead that are named first, now and then (`auto.leader.rebalance.enable`)."""
        if self._cluster.config.get_bool("auto.leader.rebalance.enable"):
            with contextlib.suppress(RequestTimedOutError, KafkaStorageError):
                await self._metadata.change(self._metadata.controller.balance_leaders, followed=False)

    # --- heartbeats

    def beat_now(self) -> None:
        """The controller does not know this broker in its epoch: see soon what is to be done about it."""
        self._beat_due.set()

    def _heartbeat(self, *, want_shut_down: bool = False) -> BrokerHeartbeatRequest:
        return BrokerHeartbeatRequest(
            broker_id=self.member.node_id,
            broker_epoch=self._cluster.broker_epoch,
            current_metadata_offset=self._metadata.image.offset,
            want_shut_down=want_shut_down,
        )

    async def _beat(self) -> None:
        is_connected = True
        while self._identity.replaced is None:
            try:
                # One that is late ends its connection: not that of requests which the controller takes long for.
                lane = PeerConnection.HEARTBEATS
                response = await self.ask_controller(self._heartbeat(), timeout_s=self._session_s, lane=lane)
                if response.error_code == ErrorCode.STALE_BROKER_EPOCH and self._registration is not None:
                    await self._register_again(self._registration)
                elif response.error_code == ErrorCode.NONE:
                    self._is_fenced = response.is_fenced
                    self._tell()
                is_connected = True
            except HeadraceError as error:
                if is_connected:
                    log.warning("the controller does not hear of this broker for now: %s", error)
                is_connected = False
            except Exception:
                # Without heartbeats a broker that was fenced stays so for good.
                log.exception("a heartbeat failed, by a defect: please report it")
            with contextlib.suppress(TimeoutError):
                pause_s = _RETRY_S if self._is_fenced else self._heartbeat_s
                await asyncio.wait_for(self._beat_due.wait(), pause_s)
            self._beat_due.clear()

    async def _register_again(self, registration: Registration) -> None:
        """The controller does not know this broker in its epoch: it was unregistered, or another has its number."""
        try:
            self._registered(await self._register(registration, self._session_s))
        except DuplicateBrokerRegistrationError:
            # The session that this broker registered in is over, and another process has registered since.
            self._identity.give_up("the store has a session of another process under its number")

    async def reserve_producer_ids(self) -> ProducerIdBlock:
        request = AllocateProducerIdsRequest(broker_id=self.member.node_id, broker_epoch=self._cluster.broker_epoch)
        response = await self.ask_controller(request)
        if response.error_code:
            raise error_for(response.error_code, "The controller gave no producer ids.")
        return ProducerIdBlock(response.producer_id_start, response.producer_id_len)

    # --- asking the controller

    def _locate(self, node_id: int) -> Node | None:
        """Where a broker is: the controller's address is known from the store, also before it is registered."""
        if self.seat is not None and self.seat.member.node_id == node_id:
            member = self.seat.member
            host, port = member.address(self._inter_broker.setting.name)
            return Node(node_id, host, port, incarnation=member.incarnation)
        broker = self._metadata.image.brokers.get(node_id)
        return None if broker is None else self._inter_broker.node(broker)

    async def ask_controller(
        self,
        request: Any,
        *,
        version: int | None = None,
        timeout_s: float = ASK_TIMEOUT_S,
        lane: PeerConnection = PeerConnection.CONTROL,
        here: Callable[[], Awaitable[Any]] | None = None,
        once: bool = False,
    ) -> Any:
        """Let the controller answer, whoever that is; given when the image here has what it decided.

        `here` decides where this broker is the controller; what brokers ask on their own account needs none. Asked
        again while there is no controller or it cannot be reached, so it may be decided twice: the requests that come
        here say what to be, not what to add, and a second answer says that it is so already.

        With `once`, a request that was perhaps sent and not answered is not asked again: a `HeadraceError` says that it
        may still be carried out, also after others.
        """
        deadline = self._clock.monotonic() + timeout_s
        local = functools.partial(self._local[type(request)], request) if here is None else here
        reason = "there is none"
        while True:
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0:
                raise RequestTimedOutError(f"The controller did not answer within {timeout_s:g} s: {reason}.")
            seat = self.seat
            response = None
            try:
                if self._metadata.active.is_active:
                    response = await local()
                elif seat is not None and seat.member.incarnation != self.incarnation:
                    response = await self._ask_remote(seat, lane, request, left_s, version)
                    if response is None and once:
                        raise NetworkError(f"Broker {seat.member.node_id} did not answer while it was the controller.")
            except (NetworkError, NotControllerError, StoreError) as error:
                if once:
                    raise
                reason = str(error)
            if response is not None:
                if getattr(response, "error_code", ErrorCode.NONE) in _OF_ANOTHER_LIFE:
                    return response  # nothing was decided, and who is refused so may not be told the metadata either
                if not tells(response, ErrorCode.NOT_CONTROLLER):
                    await self._see_outcome(deadline)
                    return response
                reason = "the one that was asked is none any more"
            await self.changed(min(_RETRY_S, max(left_s, 0.001)))

    async def _ask_remote(
        self, seat: Seat, lane: PeerConnection, request: Any, left_s: float, version: int | None
    ) -> Any:
        try:
            return await self.ask_seat(seat, lane, request, left_s, version)
        except RequestTimedOutError as error:
            # Another request on its connection was late, and has ended it: this one has time left.
            raise NetworkError(str(error)) from error

    async def _alter_partition(self, request: AlterPartitionRequest) -> Any:
        return await self._metadata.change(lambda image: self._metadata.controller.alter_partition(image, request))

    async def _see_outcome(self, deadline: float) -> None:
        """Bring the image up to what was decided just now, as far as anyone can be asked for it."""
        follower = self._metadata.follower
        while not self._metadata.active.is_active:
            try:
                if not await follower.take_from(self.fetcher):
                    await follower.catch_up()
                return
            except StoreError as error:
                if self._clock.monotonic() > deadline:
                    log.warning("what the controller decided is not seen here yet: %s", error)
                    return
                await asyncio.sleep(_RETRY_S)

    async def ask_seat(
        self, seat: Seat, lane: PeerConnection, request: Any, timeout_s: float, version: int | None = None
    ) -> Any:
        """The answer of this controller; None when another takes its seat before it has given one."""
        if self.seat != seat:
            return None
        moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asking[moved] = seat
        try:
            return await self.peers.request(
                seat.member.node_id,
                lane,
                request,
                timeout_ms=max(1.0, timeout_s * 1000),
                version_max=version,
                unless=moved,
            )
        finally:
            del self._asking[moved]


async def _nothing() -> None:
    """Nobody was the controller, as far as is known."""
