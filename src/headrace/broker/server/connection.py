"""One client's connection: frames in, one request at a time handled, answers out in order.

While a request is being handled no more than a chunk or a frame is read on: a flood waits in the kernel's buffers, and
gets a bounded number of answers before the other connections have their turn. A client that does not read its answers
is not served further ones. A request goes on when its connection is lost, unless it only waits for others: half a
change is worse than an answer that nobody hears.

Batches that are in the log and wait for other replicas hold up none of other partitions: those are written meanwhile,
in their order, and the answers wait in line. So a follower fetches many at once, where a client sends them one by one.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, cast

from headrace.broker.requests.access import Rights
from headrace.broker.requests.dispatch import PUT_OFF, CloseConnectionError, Pending, RequestContext
from headrace.broker.requests.metered import Metered
from headrace.broker.requests.pipeline import RequestPipeline
from headrace.broker.requests.route import Route
from headrace.broker.security.listener import ListenerSecurity
from headrace.broker.security.login import Login
from headrace.broker.security.tls import ListenerTls, identify
from headrace.broker.server.answer_line import AnswerLine, InLine
from headrace.broker.server.costly_requests import COSTLY_FROM_BYTES, SLOW_S, TURN_S, api_key_of
from headrace.broker.server.quiet_time import QuietTime
from headrace.broker.server.turns import SLICE
from headrace.broker.server.watched_connection import WatchedConnection
from headrace.log import Outcome
from headrace.net.frames import CHUNK_BYTES, FrameReader, FrameRefusedError
from headrace.net.frames import LENGTH_BYTES as FRAME_LENGTH_BYTES
from headrace.net.outbox import Outbox, Part
from headrace.protocol.wire import MalformedMessageError
from headrace.runtime import DiskError, FileMissingError
from headrace.topics import TopicPartition

if TYPE_CHECKING:
    from headrace.broker.server.acceptor import Acceptor

log = logging.getLogger("headrace.broker.server.connection")

# How many requests of one connection are handled before the others have their turn.
REQUESTS_PER_TURN = 32
_NOTHING = memoryview(b"")


class ServerConnection(WatchedConnection, asyncio.BufferedProtocol):
    """Reads frames, hands them to the broker's handlers one by one, writes the answers."""

    # As with those of `WatchedConnection`.
    __slots__ = (
        "_arrived", "_arriving_bytes", "_at_turn_end", "_awaited", "_frames", "_handling", "_in_line",
        "_is_greedy", "_only_waits", "_outbox", "_quiet", "_reader", "_reading_paused",
        "_sending", "_task", "_transport",
        "acceptor", "began", "close_reason", "has_been_valid",
        "last_written", "listener", "login", "metered", "now", "peer_port", "pipeline",
        "put_off_until", "rights", "security", "software", "uncommitted",
    )  # fmt: skip

    def __init__(self, acceptor: Acceptor, listener: str, security: ListenerSecurity | None = None) -> None:
        self.acceptor = acceptor
        self.now = acceptor.now
        self.pipeline: RequestPipeline = acceptor.pipeline
        self.listener = listener
        self.security = security
        #: What its client may do; None until it has said who it is, where it has to.
        self.rights: Rights | None = None
        #: Its login, where it has to log in.
        self.login = None if security is None or not security.has_login else Login(self, security)
        #: What quotas count for it.
        self.metered = Metered(self.pipeline.access)
        self.peer_host = ""
        self.peer_port = 0
        #: Name and version of what its client is, as that says.
        self.software = ("", "")
        self.began = self.last_progress = self.last_written = self.frame_began = acceptor.now()
        self.has_been_valid = False
        self.close_reason: str | None = None
        self._transport: asyncio.Transport | None = None
        self._outbox: Outbox | None = None
        self._reader = FrameReader(
            self._check_size, self._check_growth, spares=acceptor.spares, frames_max=REQUESTS_PER_TURN
        )
        self._frames: deque[memoryview] = deque()
        self._in_line: AnswerLine = AnswerLine(self)
        #: What it wrote last to partitions and is not on all replicas yet.
        self.uncommitted: dict[TopicPartition, asyncio.Future[list[Outcome]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._awaited: Pending[Any] | None = None
        self._handling: memoryview | None = None
        self._only_waits = False
        self._is_greedy = False
        self._arrived = 0.0  # when the frames that wait were read, which was at once
        self._sending: RequestContext | None = None  # an answer that the kernel has not all of
        self._quiet = QuietTime(self)  # of a client that sends too much
        self._reading_paused = False
        self._arriving_bytes = 0
        #: A request lies in the reader's buffer until the turn ends; what ends it now. None: there is none.
        self.put_off_until: Callable[[], None] | None = None
        # Of transports that are read together with others.
        self._at_turn_end: Callable[[Callable[[], None]], bool] | None = None
        #: What its costly requests have cost of the loop's time; None before the first.
        self.costly_s_per_byte: float | None = None
        #: What its small ones take; None as long as that was of no interest.
        self.slow_s: float | None = None

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._at_turn_end = getattr(transport, "at_turn_end", None)
        self._outbox = Outbox(self._transport, self.acceptor.offload, self._handle_next, self._sending_failed)
        peer = transport.get_extra_info("peername") or ("?", 0)
        self.peer_host, self.peer_port = str(peer[0]), int(peer[1])
        if self._tls is None:
            self.rights = self.pipeline.access.begin(self.listener, self.peer_host)
        elif getattr(transport, "is_established", True):
            self.tls_established()
        refusal = self.acceptor.admit(self)
        if refusal is not None:
            self.close(refusal)

    @property
    def _tls(self) -> ListenerTls | None:
        return None if self.security is None else self.security.tls

    def tls_established(self) -> None:
        """The handshake is over, which comes before all else."""
        assert self._transport is not None
        assert self._tls is not None
        self.rights = self.pipeline.access.begin(self.listener, self.peer_host)
        if self.rights is not None:  # otherwise its login says who it is
            identify(self, self._tls, self._transport.get_extra_info("ssl_object"))

    def tls_refused(self, why: str) -> None:
        assert self.security is not None
        self.security.tell_refusal(self, f"TLS: {why}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._task is not None and self._only_waits:
            self._task.cancel()
            if self._awaited is not None and inspect.iscoroutine(self._awaited.awaitable):
                # A task that is cancelled before its first step never gets to what it would have awaited.
                self._task.add_done_callback(functools.partial(_close, self._awaited.awaitable))
            self._task = None
        self._quiet.cancel()
        if self.login is not None:
            self.login.end()
        if self._outbox is not None:
            self._outbox.clear()
        self._in_line.clear()
        self._drop_frames()
        if self._task is None:
            self._release_frame()  # otherwise its memory is in use until the request has ended
        self.acceptor.release(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self.put_off_until is not None:
            self.put_off_until()  # or the frame that waits for it would be overwritten
        buffer = self._reader.buffer()
        if self._arriving_bytes:
            self._count_arriving()
        return buffer

    def buffer_updated(self, nbytes: int) -> None:
        now = self.last_progress = self.now()
        if not self._is_greedy:
            self.acceptor.turns.modest_at = now
        was_tried = False
        is_free = self._handling is None and not (self._frames or self._in_line or self._reading_paused)
        reader = self._reader
        if is_free and reader.is_only_frame(nbytes) and self._may_handle():
            self.frame_began = now
            frame = reader.chunk_view[FRAME_LENGTH_BYTES:nbytes]
            # Who fills its buffer is read again in this turn, into the same place.
            if self._answer_at_once(frame, now, now, may_put_off=nbytes < CHUNK_BYTES):
                return
            was_tried = True
        self._take_in(nbytes, now, was_tried=was_tried)

    def _take_in(self, nbytes: int, now: float, *, was_tried: bool) -> None:
        """Cut frames out of what has come, and handle them; `was_tried` as in `_handle_next`."""
        was_mid_frame = self._reader.is_mid_frame
        try:
            frames = self._reader.received(nbytes)
        except FrameRefusedError as refused:
            self.close(str(refused))
            return
        if frames or not was_mid_frame:
            self.frame_began = now
        self._count_arriving()
        if frames:
            self._arrived = now
            self._frames.extend(frames)
            self.acceptor.memory.hold(self, sum(map(len, frames)))
            self._is_greedy = len(self._frames) > SLICE
        self._handle_next(now, was_tried=was_tried)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        assert self._outbox is not None
        self.last_written = self.now()
        self._outbox.pause()
        # Not where an answer is handed over: that may be sent later in the turn.
        self.acceptor.answers.hold(self, self._outbox.held_bytes)

    def resume_writing(self) -> None:
        assert self._outbox is not None
        self.last_progress = self.last_written = self.now()
        self._outbox.resume()
        self.acceptor.answers.hold(self, self._outbox.held_bytes)
        self._handle_next()

    # --- handling

    def _handle_next(
        self, now: float | None = None, *, was_tried: bool = False, turns_left: int = REQUESTS_PER_TURN
    ) -> None:
        """Handle the frames that are there, until one has to wait, the client stops reading, or none is left.

        `was_tried`: the first of them could not be answered at once.
        """
        if self._in_line:
            self._in_line.send_done()
        if self._is_greedy and turns_left != SLICE and not self.acceptor.costly.is_chosen(self):
            if self._frames or self._reader.is_cut_short:
                self.acceptor.turns.wait(self)
                self._balance_reading()
            return
        costly = self.acceptor.costly
        turn_began = float("inf")
        reader = self._reader
        while (
            (self._frames or (reader.is_cut_short and self._cut_more()))
            and self._handling is None
            and self._may_handle()
            and self._in_line.may_join(self._frames[0])
        ):
            if turns_left == 0 or (now is not None and now - turn_began > TURN_S):
                self._is_greedy = True
                self.acceptor.turns.wait(self)
                break
            turns_left -= 1
            frame = self._handling = self._frames.popleft()
            # The end of one request is the beginning of the next: the clock is not read for both.
            began = self.now() if now is None else now
            if turn_began > began:
                turn_began = began
            if not was_tried and not self._in_line and self._answer_at_once(frame, self._arrived, began):
                self._forget_frame()
                now = self.last_progress
                continue
            was_tried = False
            is_costly = len(frame) > COSTLY_FROM_BYTES or (bool(costly.slow_s) and costly.is_slow(self, frame))
            if is_costly and not costly.may_begin(self, frame):
                self._frames.appendleft(frame)
                self._handling = None
                break
            if self.rights is None and self.login is not None and self.login.took_token(frame):
                self._forget_frame()
                continue
            cpu_before = costly.cpu() if began < costly.measured_until else None
            try:
                context = self.pipeline.begin(self, frame, self._arrived, began)
                self.has_been_valid = True
                now = self._took(context)
                if is_costly or cpu_before is not None or now - began > SLOW_S:
                    used_s = costly.used_s(began, now, cpu_before)
                    costly.took(self, context.request_bytes, context.api_key, used_s)
            except Exception as error:  # noqa: BLE001 - a defect of ours must cost one connection, not the broker
                # What is none took its time too, and there may be as many of them as there are connections.
                used_s = costly.used_s(began, self.now(), cpu_before)
                costly.took(self, len(frame), api_key_of(frame), used_s)
                if isinstance(error, (MalformedMessageError, CloseConnectionError)):
                    self.close(str(error))
                else:
                    self.fail(error)
                return
        if self._frames or self._reading_paused or self._arriving_bytes:
            self._balance_reading()

    def _cut_more(self) -> bool:
        """Take up frames that have come behind those that were handled; False when there are none."""
        try:
            frames = self._reader.more()
        except FrameRefusedError as refused:
            self.close(str(refused))
            return False
        self._count_arriving()
        self._frames.extend(frames)
        self.acceptor.memory.hold(self, sum(map(len, frames)))
        return bool(frames)

    def _answer_at_once(self, frame: memoryview, arrived: float, began: float, *, may_put_off: bool = False) -> bool:
        """Answer a request that needs no wait and has a common shape; False, having done nothing, for any other."""
        try:
            found = self.pipeline.at_once(self, frame, may_put_off=may_put_off)
        except Exception as error:  # noqa: BLE001 - as in `_handle_next`
            self.fail(error)
            return True
        if found is None:
            return False
        route, answer = found
        if answer is not PUT_OFF:
            if route.consumes and not self.metered.has_room(0, len(answer)):
                return False
            self._send_at_once(route, answer, len(frame), arrived, began, self.now())
        self.has_been_valid = True
        return True

    def _send_at_once(
        self, route: Route, answer: bytes, frame_bytes: int, arrived: float, began: float, ran: float
    ) -> None:
        outbox = self._outbox
        assert outbox is not None
        if self.metered.meter is not None:
            self.metered.count(route, frame_bytes, len(answer), ran - began)
        is_sent = outbox.send_one(answer)
        sent = self.last_progress = self.now()
        if is_sent:
            route.metrics.add_at_once(frame_bytes, len(answer), began - arrived, ran - began, sent - ran)
        else:
            self._is_sending(route, len(answer), frame_bytes, arrived, began, ran)

    def _is_sending(
        self, route: Route, answer_bytes: int, frame_bytes: int, arrived: float, began: float, ran: float
    ) -> None:
        """The kernel has not all of an answer: the request is counted when it has."""
        self._sending = RequestContext(route, 0, None, self, frame_bytes, began, began - arrived)
        self._sending.ran = self._sending.done = ran
        route.metrics.response_bytes += answer_bytes

    def send_bytes(self, data: bytes) -> None:
        assert self._outbox is not None
        self._outbox.send_one(data)

    def at_turn_end(self, finish: Callable[[], None]) -> bool:
        """Call `finish` when all connections of this turn are read; False where each is read for itself."""
        return self._at_turn_end is not None and self._at_turn_end(finish)

    def answer_put_off(self, route: Route, answer: bytes | None, frame_bytes: int, now: float, used_s: float) -> bool:
        """The turn ends: the answer to the request that was put off; None if it has to go the way of all others.

        Whether it is sent, but not counted: that is done for all of a turn together.
        """
        self.put_off_until = None
        transport, outbox = self._transport, self._outbox
        if transport is None or outbox is None or transport.is_closing():
            return False
        if answer is None:
            self._take_in(frame_bytes + FRAME_LENGTH_BYTES, now, was_tried=True)
            return False
        self.last_progress = now
        self.metered.count(route, frame_bytes, len(answer), used_s)
        if outbox.send_one(answer):
            return True
        self._is_sending(route, len(answer), frame_bytes, self.frame_began, self.frame_began, now)
        return False

    def wait_put_off(
        self, route: Route, correlation_id: int, frame_bytes: int, used_s: float
    ) -> Callable[[bytes], None] | None:
        """The turn ends: the request that was put off is done, and others are waited for. What is told the answer; None
        if nobody is there."""
        self.put_off_until = None
        if self.is_lost:
            return None
        context = RequestContext(route, correlation_id, None, self, frame_bytes, self.frame_began, 0.0)
        context.ran = self.now()
        self.metered.count(route, frame_bytes, 0, used_s)
        return functools.partial(self._bring, self._in_line.hold(context))

    def _bring(self, place: InLine, answer: bytes) -> None:
        place.response, place.done = answer, self.now()
        self.answered(place)

    def answered(self, place: InLine) -> None:
        """An answer that was waited for is there: it is sent, unless others have to be sent before."""
        line, outbox, context = self._in_line, self._outbox, place.context
        if not line or line[0] is not place:
            return  # it is empty when the connection is lost
        answer, done = place.response, place.done
        is_more = len(line) > 1 or self._frames or self._reader.is_mid_frame or self._reading_paused
        if is_more or type(answer) is not bytes or done is None or not self.has_room_for_answer():
            self._handle_next()
            return
        assert outbox is not None
        line.clear()
        self.last_progress = context.done = done
        context.route.metrics.response_bytes += len(answer)
        if outbox.send_one(answer):
            self.pipeline.sent(context, self.now())
        else:
            self._sending = context

    def _took(self, context: RequestContext) -> float:
        """A request went as far as it goes without waiting: answer it, or wait for its answer; the time after that."""
        result = context.result
        if not isinstance(result, Pending):
            return self._answer(context, result, context.ran)
        if result.is_done and context.throttle_s == 0:
            self._in_line.wait(context, result)
            self._forget_frame()
        else:
            self._wait(context, result)
        return context.ran

    # --- one that is waited for

    def _wait(self, context: RequestContext, pending: Pending[Any]) -> None:
        self._only_waits = context.route.handler.only_waits
        if not context.route.keeps_frame and self._handling is not None:
            # Its request was decoded, and shares no memory with it.
            self.acceptor.memory.hold(self, -len(self._handling))
            self._handling = _NOTHING
        self._task = asyncio.get_running_loop().create_task(self._finish_later(context, pending))
        self.keep(self._task)
        self._awaited = pending

    def take_turn(self) -> None:
        """Handle a few of the requests of a client that has sent many."""
        self._handle_next(turns_left=SLICE)

    def has_room_for_answer(self) -> bool:
        """Whether the client has read all that it was answered."""
        outbox = self._outbox
        if outbox is None or not outbox.is_empty:
            return False
        if self._sending is not None:
            self.pipeline.sent(self._sending, self.now())
            self._sending = None
        return True

    def _may_handle(self) -> bool:
        outbox, transport = self._outbox, self._transport
        # As in `has_room_for_answer`, which is asked where there is something to be done.
        if outbox is None or not outbox.is_empty or (self._sending is not None and not self.has_room_for_answer()):
            return False
        # Nothing is begun for a client that is gone, also if nobody has been told yet.
        is_lost = transport is None or transport.is_closing()
        return self._quiet.timer is None and self.acceptor.is_open and not is_lost

    async def _finish_later(self, context: RequestContext, pending: Pending[Any]) -> None:
        try:
            response = await pending
            if context.route.is_split and context.request_bytes > COSTLY_FROM_BYTES:
                # What was decided, and to encode what is told of it, may both take long: others come between.
                await asyncio.sleep(0)
        except CloseConnectionError as error:
            self.pipeline.failed(context)
            self.close(str(error))
            return
        except asyncio.CancelledError:
            # Whoever ended it, no answer will come: a client that is still there must not wait for one.
            self.abort("a request was given up")
            raise
        except Exception as error:  # noqa: BLE001 - as above
            self.pipeline.failed(context)
            self.fail(error)
            return
        finally:
            self._task = self._awaited = None
            if self._transport is None:
                self._release_frame()
        if self._transport is None:
            return
        try:
            self._answer(context, response, self.now())
        except Exception as error:  # noqa: BLE001 - as above
            self.fail(error)
            return
        self._handle_next()

    def _answer(self, context: RequestContext, response: Any, done: float) -> float:
        """Send a response that was there at `done`, behind those of earlier requests; the time when that is over."""
        if self._in_line:
            self._in_line.add(context, response, done)
            self._forget_frame()
            return self.now()
        now = self.send(context, response, done)
        self._forget_frame()
        return now

    def send(self, context: RequestContext, response: Any, done: float) -> float:
        """Send a response that was there at `done`; the time after that."""
        outbox = self._outbox
        assert outbox is not None
        parts = self.pipeline.encode(context, response, done)
        if parts:
            outbox.send(cast("Sequence[Part]", parts))
        now = self.last_progress = self.now()
        if outbox.is_empty:
            self.pipeline.sent(context, now)
        else:
            self._sending = context
        if context.throttle_s > 0:
            self.rest(context.throttle_s)
        if context.ends_connection is not None:
            self.close(context.ends_connection)
        return now

    def rest(self, seconds: float, *, ends: str | None = None) -> None:
        """Hear nothing of this client for a while. `ends` is why the connection is closed after that."""
        self._quiet.begin(seconds, ends)
        self._balance_reading()

    def _forget_frame(self) -> None:
        frame = self._release_frame()
        if frame is not None:
            self._reader.recycle(frame)

    def _release_frame(self) -> memoryview | None:
        frame, self._handling = self._handling, None
        if frame is not None:
            self.acceptor.memory.hold(self, -len(frame))
        return frame

    def fail(self, error: BaseException) -> None:
        """A defect of ours: it costs this connection."""
        log.error("a request of %s:%s failed; its connection is closed", self.peer_host, self.peer_port, exc_info=error)
        self.abort(f"internal error: {error}")

    def _sending_failed(self, error: BaseException) -> None:
        """The rest of an answer cannot be read: what was sent of it is of no use, and the client has to ask again."""
        if not isinstance(error, DiskError):
            self.fail(error)
            return
        # Where a topic was deleted, or a log moved, while a slow client read from it, nothing is wrong with a disk.
        level = logging.INFO if isinstance(error, FileMissingError) else logging.ERROR
        log.log(level, "an answer to %s:%s cannot be sent to its end: %s", self.peer_host, self.peer_port, error)
        self.abort(f"an answer could not be read: {error}")

    # --- holding back

    def _check_size(self, size: int) -> None:
        self.acceptor.check_size(size)
        if self.rights is None and self.login is not None:
            self.login.check_size(size)

    def _check_growth(self, arrived: int) -> None:
        if not self.has_been_valid:
            self.acceptor.check_first_frame(arrived)

    def _count_arriving(self) -> None:
        """Count the memory of a large frame under way, which is taken before the frame is whole."""
        allocated = self._reader.allocated_bytes
        if allocated != self._arriving_bytes:
            change = allocated - self._arriving_bytes
            self._arriving_bytes = allocated
            self.acceptor.memory.hold(self, change)
            if not allocated:
                self.acceptor.memory.has_arrived(self)

    def _balance_reading(self) -> None:
        """Stop reading while frames wait, or a large one would need more than the broker has room for.

        Nor is a large one read while the request before it waits for others: that may be for minutes.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        should_pause = (
            bool(self._frames)
            or self._quiet.timer is not None
            or (
                self._arriving_bytes > 0
                and (self.is_only_waiting or not self.acceptor.memory.may_go_on(self, self.frame_bytes))
            )
        )
        if should_pause and not self._reading_paused:
            self._reading_paused = True
            transport.pause_reading()
        elif not should_pause and self._reading_paused:
            self._reading_paused = False
            self.frame_began = self.now()  # the time that we did not read is not the client's
            transport.resume_reading()

    def hold_back(self) -> None:
        """The broker holds too much: read no more of a large frame for now."""
        self._balance_reading()

    def resume(self) -> None:
        """Go on after the broker became ready, or has room again."""
        self._handle_next()

    def keep(self, work: asyncio.Future[Any]) -> None:
        """Remember a request under way, which goes on also without its connection."""
        self.acceptor.keep(work)

    # --- who asks

    def identify(self, principal: str | None) -> None:
        """The client has shown who it is; None: what it has shown holds no more, and it has to do so again."""
        self.rights = None if principal is None else self.pipeline.access.rights(principal, self.peer_host)
        self.metered.forget()

    # --- ending

    def close(self, reason: str) -> None:
        """End the connection once what was written is sent. The reason is for our own log: Kafka sends none."""
        if self.close_reason is None:
            self.close_reason = reason
            log.debug("closing %s:%s: %s", self.peer_host, self.peer_port, reason)
        self._drop_frames()
        if self._transport is not None and self._outbox is not None:
            self._outbox.finish()
            self._transport.close()

    def drop_spare(self) -> None:
        """Give back memory that a quiet connection does not need."""
        self._reader.drop_spare()

    def _drop_frames(self) -> None:
        for frame in self._frames:
            self.acceptor.memory.hold(self, -len(frame))
        self._frames.clear()
        self._reader.clear()
        self._count_arriving()

    def abort(self, reason: str) -> None:
        """End the connection at once, unsent answers dropped."""
        self.close_reason = self.close_reason or reason
        self._drop_frames()
        if self._transport is not None:
            self._transport.abort()


def _close(never_awaited: Coroutine[Any, Any, Any], task: asyncio.Task[None]) -> None:
    """Does nothing to a coroutine that has come to its end."""
    never_awaited.close()
