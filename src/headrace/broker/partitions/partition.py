"""A partition as this broker serves it: its log, its role, and who waits for it.

Every change of the log goes through its directory's writer, inline while the disk is quiet; only the high watermark is
moved here, on the loop (`LogState` says who owns what). That of a partition with one replica is its log end; with more,
what the leader knows of its followers decides (`replication/leader.py`), and a follower takes what its leader tells.

A role change passes through the writer as well, and what was queued before looks at the leader epoch again in its turn:
nothing that was asked of a former leader lands behind its end. What was begun on a log is finished whoever waits for
it, and while the log itself is exchanged (`exchange`) everything else waits its turn.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from headrace.broker.partitions.late_appends import LateAppend, is_sync_due
from headrace.broker.partitions.leadership import NO_LEADER, NO_LEADER_EPOCH, Isolation, Leadership
from headrace.broker.partitions.purgatory import Watchers
from headrace.broker.partitions.traffic import Traffic
from headrace.broker.partitions.turns import LogTurns
from headrace.broker.replication.commits import Commits, CommitWait, in_order
from headrace.broker.replication.deletions import Deletions, low_watermark
from headrace.broker.replication.follower import Position, is_about, position
from headrace.broker.replication.leader import UNKNOWN, LeaderState, Proposal
from headrace.broker.replication.surroundings import ALONE, Surroundings
from headrace.errors import (
    KafkaStorageError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    UnknownLeaderEpochError,
)
from headrace.log import UNVERIFIED, Appended, Checked, Log, LogConfig, Origin, Outcome, Verification, only
from headrace.runtime import BUSY, Buffer, DirectoryWriter, DiskError, OverloadedError
from headrace.topics import TopicPartition

_CLIENT = Origin.CLIENT
_NEVER_FLUSHED = LogConfig().flush_messages
ROLE_RETRY_S = 0.1
SYNC_RETRY_S = 1.0


class Partition:
    """Appends to and reads from one partition whose replica is here."""

    __slots__ = (
        "_commits",
        "_deletions",
        "_offline",
        "_own_id",
        "_refusal",
        "_role_epoch",
        "_surroundings",
        "_sync_again",
        "append_watchers",
        "key",
        "leadership",
        "log",
        "state",
        "traffic",
        "turns",
        "watchers",
        "writer",
    )

    def __init__(
        self,
        own_id: int,
        key: TopicPartition,
        log: Log,
        writer: DirectoryWriter,
        leadership: Leadership,
        surroundings: Surroundings = ALONE,
    ) -> None:
        self._own_id = own_id
        self.key = key
        self.leadership = leadership
        self._surroundings = surroundings
        #: Who waits for something to be committed; and who for something to be appended: followers.
        self.watchers = Watchers()
        self.append_watchers = Watchers()
        self.traffic = Traffic()
        #: What a leader of more than one replica knows; None for any other.
        self.state: LeaderState | None = None
        #: The leader epoch whose role is in effect; others wait for their turn at the writer.
        self._role_epoch = NO_LEADER_EPOCH - 1
        self._commits = Commits(key, self.watchers, self.append_watchers)
        #: Who waits until other replicas have deleted records, too; most partitions never have any.
        self._deletions: Deletions | None = None
        self._offline: str | None = None
        #: Why nothing is done here as the leader: the log is offline, or this broker counts as dead (`suspend`).
        self._refusal: str | None = None
        #: When what could not be synced is tried again; None: it is not.
        self._sync_again: asyncio.TimerHandle | None = None
        #: Who uses the log, and who has to wait while it is exchanged.
        self.turns = LogTurns(log, writer, self.failed, self.wake_all)
        self.put(log, writer)
        self._change_role()
        self._advance(log.durable_end)

    # --- state

    def put(self, log: Log, writer: DirectoryWriter) -> None:
        """Serve this log, in the directory of that writer: from now on nobody else changes it."""
        self.log = self.turns.log = log
        self.writer = log.writer = self.turns.writer = writer

    @property
    def is_leader(self) -> bool:
        return self.leadership.leader_id == self._own_id and self._offline is None

    def leads_in(self, leader_epoch: int) -> bool:
        """Whether this broker leads in that epoch, which is the present one; asked on whichever thread."""
        leadership = self.leadership
        return leadership.leader_epoch == leader_epoch and leadership.leader_id == self._own_id

    @property
    def has_begun(self) -> bool:
        """Whether the present leader epoch is in effect: what this log was before has come to its end."""
        return self._role_epoch == self.leadership.leader_epoch

    @property
    def is_following(self) -> bool:
        """Whether there is a leader to fetch from, in an epoch that has begun."""
        leadership = self.leadership
        return (
            leadership.leader_id not in (self._own_id, NO_LEADER)
            and self._own_id in leadership.replicas
            and self.has_begun
            and self._offline is None
        )

    @property
    def leader_epoch(self) -> int:
        return self.leadership.leader_epoch

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    @property
    def is_offline(self) -> bool:
        return self._offline is not None

    def lead(self, leadership: Leadership) -> None:
        """Take over what the metadata says; whoever waits here looks again."""
        known = self.leadership
        if leadership.leader_epoch < known.leader_epoch or leadership.partition_epoch < known.partition_epoch:
            return  # an answer of the controller has told something newer already
        self.leadership = leadership
        if leadership.leader_epoch != known.leader_epoch or leadership.leader_id != known.leader_id:
            self._change_role()
        elif self.state is not None:
            now_ms = self._surroundings.now_ms()
            if self.state.changed(leadership.term(), now_ms):
                self._was_committed()
            self._propose(self.state, self.state.any_expansion(now_ms))
        elif self._role_epoch == leadership.leader_epoch and self.is_leader and len(leadership.replicas) > 1:
            self._take_effect()  # it is given its first followers
        # What waits to be synced becomes visible with its own acknowledgement.
        self._advance(self.log.durable_end)
        self.wake_all()

    def reconfigure(self, config: LogConfig) -> None:
        """Go by another configuration of the topic from now on."""
        self.log.config = config
        if (state := self.state) is not None and state.min_isr != config.min_insync_replicas:
            state.min_isr = config.min_insync_replicas
            if state.tick(self._surroundings.now_ms()):
                self._was_committed()
        self._sync_rest()

    def wake_all(self) -> None:
        self.watchers.wake_all()
        self.append_watchers.wake_all()

    # --- roles

    def _change_role(self) -> None:
        """Begin a leader epoch: what is appended from now on belongs to it, what was asked for before does not."""
        self.state = None
        self.traffic.look(self.log.end_offset)
        self.traffic.leads_no_more()
        self._commits.forget()
        self._commits.end(NotLeaderOrFollowerError, "the leader epoch ended before this was committed")
        self._end_deletions("the leader epoch ended before every replica had deleted the records")
        if self.turns.held is not None:
            self.turns.held.append(self._change_role)
            return
        log, epoch = self.log, self.leadership.leader_epoch
        leads = self.leadership.leader_id == self._own_id
        if self.writer.try_inline(_take_role, log, epoch, leads) is not BUSY:
            self._take_effect()
            return
        try:
            self.turns.begin(self._change_role_later(self.writer.submit(_take_role, log, epoch, leads), epoch))
        except OverloadedError:
            # Too much waits for the disk. What is appended before the next try begins the epoch by itself.
            asyncio.get_running_loop().call_later(ROLE_RETRY_S, self._retry_role_change, epoch)
        except DiskError:
            pass  # the broker stops: there is no writer any more

    def _retry_role_change(self, epoch: int) -> None:
        if self.leadership.leader_epoch == epoch and self._role_epoch != epoch and self._offline is None:
            self._change_role()

    async def _change_role_later(self, submitted: asyncio.Future[None], epoch: int) -> None:
        await submitted
        if self.leadership.leader_epoch == epoch:
            self._take_effect()
            self.wake_all()

    def _take_effect(self) -> None:
        """The log is as the former epochs left it: from here on it is that of this one."""
        leadership = self.leadership
        self._role_epoch = leadership.leader_epoch
        if leadership.leader_id == self._own_id and len(leadership.replicas) > 1:
            self.state = LeaderState.begin(self._own_id, leadership.term(), self.log, self._surroundings)
            self._was_committed()
        self._surroundings.role_changed(self)
        if leadership.leader_id == self._own_id:
            self.traffic.leads_from(self.log.end_offset)
            self._sync_rest()

    def go_offline(self, reason: str) -> None:
        """The disk below failed: nothing is served from here any more."""
        self._offline = self._refusal = reason
        self._commits.end(KafkaStorageError, f"its log directory is offline ({reason})")
        self._end_deletions(reason)
        self.wake_all()

    def suspend(self, reason: str) -> None:
        """Do nothing as the leader until `resume`: others may take this broker for dead, and lead instead.

        What is known of followers is kept: a proposal that is under way may still be carried out in this epoch.
        """
        if self._offline is None:
            self._refusal = reason
        self._commits.end(NotLeaderOrFollowerError, reason)
        self._end_deletions(reason)
        self.wake_all()

    def resume(self) -> None:
        self._refusal = self._offline
        self.wake_all()

    def check_leader(self, current_leader_epoch: int = NO_LEADER_EPOCH) -> None:
        """Refuse a client whose idea of the leader differs from ours: it has old metadata, or we have."""
        leadership = self.leadership
        if (
            leadership.leader_id == self._own_id
            and (current_leader_epoch == NO_LEADER_EPOCH or current_leader_epoch == leadership.leader_epoch)
            and self._refusal is None
        ):
            return
        self.check_epoch(current_leader_epoch)
        leader_id = leadership.leader_id
        reason = self._refusal if leader_id == self._own_id else f"broker {leader_id} leads it"
        raise NotLeaderOrFollowerError(f"{self.key}: {reason}")

    def check_epoch(self, current_leader_epoch: int) -> None:
        """As `check_leader`, for what any replica may answer."""
        if self._offline is not None:
            raise KafkaStorageError(f"{self.key}: its log directory is offline ({self._offline})")
        self.leadership.check_epoch(self.key, current_leader_epoch)

    def check_settled(self) -> None:
        """Refuse to tell the end of the log before all that the former leaders committed is known to be (KIP-207)."""
        if not self.has_begun or (self.state is not None and not self.state.is_settled):
            raise OffsetNotAvailableError(
                f"{self.key}: the high watermark {self.high_watermark} has not reached the start of leader epoch "
                f"{self.leader_epoch} yet; ask again"
            )

    def end_for(self, isolation: Isolation) -> int:
        """Where a reader of that isolation must stop."""
        return self.log.last_stable_offset if isolation is Isolation.READ_COMMITTED else self.log.high_watermark

    # --- writing

    def append(
        self,
        records: Buffer,
        *,
        origin: Origin = Origin.CLIENT,
        acks: int = -1,
        verification: Verification | None = None,
        transaction_version: int = 0,
        timeout_ms: int | None = None,
        leader_epoch: int = NO_LEADER_EPOCH,
        checked: Checked | None = None,
    ) -> Appended | asyncio.Future[Appended]:
        """Append one batch: as `append_all`. Raises what is wrong with it or this replica; then nothing was written.

        TakesLongError: check it (`Log.check`) on another thread, and pass what is `checked`.
        """
        if checked is None:
            if self.turns.held is None:
                self.check_writable(acks, leader_epoch)
            checked = self.check(records, origin, verification, transaction_version)
        outcomes = self.append_all((checked,), acks, timeout_ms, leader_epoch)
        return only(outcomes) if isinstance(outcomes, list) else _one_of(outcomes)

    def check(
        self,
        records: Buffer,
        origin: Origin = Origin.CLIENT,
        verification: Verification | None = None,
        transaction_version: int = 0,
        *,
        short: bool = True,
    ) -> Checked:
        """What `append_all` takes; see `Log.check`. A client's transaction has to be open, or to have a guard."""
        if origin is not _CLIENT:
            short = False
        elif verification is None:
            # It was open here when we looked, which by the writer's turn it may no longer be.
            verification = UNVERIFIED
        return self.log.check(
            records, origin, short=short, verification=verification, transaction_version=transaction_version
        )

    def append_all(
        self,
        batches: Sequence[Checked],
        acks: int = -1,
        timeout_ms: int | None = None,
        leader_epoch: int = NO_LEADER_EPOCH,
        *,
        are_borrowed: bool = False,
    ) -> list[Outcome] | asyncio.Future[list[Outcome]]:
        """Append batches in their order. Gives what became of each: at once, or something to wait for: a busy disk,
        other replicas.

        With acks=-1 it is there when they are committed; `timeout_ms` is for that. With a leader epoch they are refused
        unless that is the present one, also in their turn. Raises why this replica takes none now. Of batches that
        `are_borrowed` the bytes are not used any more afterwards.
        """
        if self.turns.held is not None:
            if are_borrowed:
                batches = _copied(batches)
            return self.turns.hold_back(
                functools.partial(self.append_all, batches, acks, timeout_ms, leader_epoch),
            )
        self.check_writable(acks, leader_epoch)
        log, epoch = self.log, self.leadership.leader_epoch
        outcomes = self.writer.try_inline(log.append, batches, epoch)
        if outcomes is BUSY:
            # Submitted now, not when somebody waits for it: appends keep the order in which they were asked for.
            late = LateAppend(self, log, _copied(batches) if are_borrowed else batches, acks, epoch, timeout_ms)
            try:
                later = late.committed(self.turns.begin(late.finish(self.writer.submit(late.append))))
            except OverloadedError as error:
                raise self.failed(error) from error
            return in_order(later) if are_borrowed else later
        if is_sync_due(outcomes, log):
            late = LateAppend(self, log, batches, acks, epoch, timeout_ms)
            return in_order(late.committed(self.turns.begin(late.sync(outcomes))))
        return self.in_log(batches, outcomes, acks, timeout_ms)

    def check_writable(self, acks: int, leader_epoch: int = NO_LEADER_EPOCH) -> None:
        """Refuse what would be written now, unless this broker leads with enough replicas in sync."""
        self.check_leader(leader_epoch)
        leadership = self.leadership
        if acks == -1:
            # Kafka 4 caps the wanted number by the replicas that exist, so one broker serves any setting.
            isr = leadership.isr if self.state is None else self.state.term.isr
            needed = min(self.log.config.min_insync_replicas, len(leadership.replicas))
            if len(isr) < needed:
                raise NotEnoughReplicasError(f"{self.key}: {len(isr)} in-sync replicas, min.insync.replicas={needed}")
        if self.state is None and len(leadership.replicas) > 1 and not self.writer.busy:
            # Nobody would wait for the other replicas. What has to wait itself is looked at again when it is written.
            raise NotLeaderOrFollowerError(f"{self.key}: leader epoch {leadership.leader_epoch} has yet to begin here")

    @property
    def writes_at_once(self) -> bool:
        """Whether `append_all` gives what becomes of batches at once: nobody has to be waited for."""
        return (
            self.turns.held is None
            and not self.writer.busy
            and self.state is None
            and self.log.config.flush_messages == _NEVER_FLUSHED
        )

    def in_log(
        self, batches: Sequence[Checked], outcomes: list[Outcome], acks: int, timeout_ms: int | None
    ) -> list[Outcome] | CommitWait:
        """The log is done with these batches, in the present role: they count, or wait for other replicas."""
        last: Appended | None = None
        end_offset = nbytes = 0
        rolled = False
        for place, one in enumerate(outcomes):
            if not isinstance(one, Appended):
                if isinstance(one, DiskError):
                    outcomes[place] = self.failed(one)
                continue
            if one[1] >= end_offset:
                end_offset = one[1] + 1
            if not one[4]:  # a duplicate
                last = one
                nbytes += len(batches[place][0])
                rolled = rolled or one[7]
        state = self.state
        if state is None:
            if end_offset > self.log.high_watermark:
                self.log.update_high_watermark(end_offset)
            if last is not None:
                self.traffic.bytes_in += nbytes
                self.watchers.on_append(nbytes)
                self._after_roll(rolled)
            return outcomes
        # Followers may fetch them, and once they all have them they are committed.
        if last is not None:
            self._commits.appended(last.last_offset + 1, nbytes)
        if state.appended(end_offset, self._surroundings.now_ms()):
            self._was_committed()
        if last is not None:
            self.traffic.bytes_in += nbytes
            self.append_watchers.on_append(nbytes)
            self._after_roll(rolled)
        if acks != -1 or state.high_watermark >= end_offset:
            return outcomes
        return self._commits.wait(outcomes, end_offset, timeout_ms)

    # --- leading

    def _was_committed(self) -> None:
        """The watermark may have moved: whoever waits for what is below it goes on."""
        if (state := self.state) is not None and self.log.update_high_watermark(state.high_watermark):
            self._commits.acknowledge(state)
            self._commits.show(state.high_watermark)

    def check_follower(self, node_id: int, broker_epoch: int, current_leader_epoch: int) -> None:
        """Refuse a fetch in the name of a broker that has no replica, or that was restarted since."""
        if current_leader_epoch > NO_LEADER_EPOCH and node_id not in self.leadership.replicas:
            # It may be one that is being added, and has heard of it before this broker.
            raise UnknownLeaderEpochError(f"{self.key}: broker {node_id} has no replica of it, as far as is known here")
        registered = self._surroundings.broker_epoch(node_id)
        if registered is not None and UNKNOWN < broker_epoch < registered:
            # What another process with its number has says nothing of what this one's replica has.
            words = f"broker {node_id} of epoch {broker_epoch} was followed by one of epoch {registered}"
            raise NotLeaderOrFollowerError(f"{self.key}: {words}")
        if (state := self.state) is None or not state.check_fetch(node_id, broker_epoch):
            raise NotLeaderOrFollowerError(f"{self.key}: broker {node_id} has no replica of it")

    def fetched(self, node_id: int, broker_epoch: int, offset: int, start_offset: int) -> None:
        """A follower has everything below `offset`."""
        if (state := self.state) is None:
            return
        now_ms = self._surroundings.now_ms()
        if state.fetched(node_id, broker_epoch, offset, start_offset, self.log.end_offset, now_ms):
            self._was_committed()
        if self._deletions is not None:
            self._deletions.look()
        if node_id not in state.term.isr:
            self._propose(state, state.expansion(node_id))

    def check_in_sync(self) -> None:
        """Time has passed: followers that are behind for too long leave the in-sync replicas."""
        if self._offline is not None or self.log.failure is not None:
            return  # that is why they are: without them nobody could lead in our place
        if (state := self.state) is not None:
            now_ms = self._surroundings.now_ms()
            if state.tick(now_ms):
                self._was_committed()
            self._propose(state, state.shrinkage(now_ms))
            self._propose(state, state.any_expansion(now_ms))
            self._propose(state, state.settlement())

    def brokers_changed(self, node_ids: list[int]) -> None:
        """Brokers were fenced, came back or were registered anew."""
        if (state := self.state) is not None:
            now_ms = self._surroundings.now_ms()
            if state.brokers_changed(node_ids, now_ms):
                self._was_committed()
            if self._deletions is not None:
                self._deletions.look()
            self._propose(state, state.any_expansion(now_ms))
            self._propose(state, state.settlement())

    def isr_settled(self) -> None:
        """The controller has answered a proposal."""
        if (state := self.state) is None:
            return
        if state.term.partition_epoch > self.leadership.partition_epoch:
            self.leadership = Leadership.of(state.term)
        self._was_committed()
        self._propose(state, state.any_expansion(self._surroundings.now_ms()))
        if state.was_refused:
            self._propose(state, state.settlement())

    def _propose(self, state: LeaderState, proposal: Proposal | None) -> None:
        if proposal is not None:
            self._surroundings.propose(self, state, proposal)

    # --- following

    def position(self) -> Position:
        """Where this follower goes on."""
        log = self.log
        return position(log.topic_id or b"", self.key.partition, self.leadership.leader_epoch, log)

    def is_about(self, asked: Position) -> bool:
        """Whether a leader's answer is about the log as it is; asked in the writer's turn, on whichever thread."""
        return self.leadership.leader_id != self._own_id and is_about(asked, self.position())

    def copied(self, appended: Appended, nbytes: int) -> None:
        """A follower has appended what its leader sent."""
        self.traffic.replication_bytes_in += nbytes
        self._commits.appended(appended.last_offset + 1, nbytes)
        self._after_roll(appended.rolled)

    def cutting(self, offset: int) -> AbstractAsyncContextManager[None]:
        """While this lasts, the log is cut at that offset."""
        return self._surroundings.cutting(self, offset)

    def was_cut(self) -> None:
        """What waits below the log's end may be gone."""
        self._commits.forget()

    def learn_watermark(self, high_watermark: int) -> None:
        """A follower hears what its leader has committed. It never shows less than before."""
        if high_watermark > self.log.high_watermark:
            self.log.update_high_watermark(high_watermark)
            self._commits.show(high_watermark)

    # --- the log

    async def sync(self) -> None:
        """Make everything appended so far durable."""
        await self.turns.sync()
        self.note_durable()

    def _sync_rest(self) -> None:
        """Have synced what nobody waits for: what an earlier role left, or what another `flush.messages` asks for."""
        if self._sync_again is not None:
            self._sync_again.cancel()  # of however many have asked for it
            self._sync_again = None
        log = self.log
        if log.failure is not None or self._offline is not None:
            return
        if self.turns.held is not None:
            self.turns.held.append(self._sync_rest)
        elif log.durable_end >= log.end_offset:
            # It may not have been when it was looked at last: others sync it as well, and less may be wanted by now.
            self.note_durable()
        else:
            self.turns.begin(self._sync_left(log))

    async def _sync_left(self, log: Log) -> None:
        try:
            await self.turns.sync_log(log)
        except KafkaStorageError:
            if self._sync_again is None:
                self._sync_again = asyncio.get_running_loop().call_later(SYNC_RETRY_S, self._sync_rest)
            return
        self.note_durable()
        self.wake_all()

    def note_durable(self) -> None:
        """Something was synced: what was not on the disk yet when this role began counts from now on."""
        if (state := self.state) is None:
            self._advance(self.log.durable_end)
        elif state.appended(self.log.durable_end, self._surroundings.now_ms()):
            self._was_committed()

    async def delete_records(self, before: int, timeout_s: float) -> int:
        """Delete what is below an offset, here and at every live replica; where the one with the oldest records begins.

        What a replica is late with is deleted all the same, when it has caught up.
        """
        if before > self.log.start_offset:
            await self.turns.change_log(Log.delete_records, before)
            self.check_leader()  # whoever leads no more is told nothing of the others
        if self._deletions is None:
            self._deletions = Deletions(self.low_watermark)
        return await self._deletions.wait(before, timeout_s)

    def low_watermark(self) -> int:
        """Where the log begins at the live replica that has the oldest records; -1 when that is not known."""
        is_alone = len(self.leadership.replicas) <= 1
        return low_watermark(self.state, self.log.start_offset, is_alone, self._surroundings.is_alive)

    def _end_deletions(self, reason: str) -> None:
        if self._deletions is not None:
            self._deletions.end(f"{self.key}: {reason}")
            self._deletions = None

    def failed(self, error: DiskError | OverloadedError) -> KafkaStorageError:
        """What is answered when the disk cannot do something; for good, unless it only has too much to do."""
        is_transient = isinstance(error, OverloadedError) or error.is_shortage
        if not is_transient or self.log.failure is not None:
            self.go_offline(str(error))
        return KafkaStorageError(f"{self.key}: {error}")

    def _advance(self, end_offset: int) -> None:
        """Everything below is in the log, and as durable as its topic wants; never back, never further than that."""
        if len(self.leadership.replicas) <= 1 and end_offset > self.log.high_watermark:
            self.log.update_high_watermark(end_offset)
            self.watchers.wake_all()

    def _after_roll(self, rolled: bool) -> None:
        if rolled:
            # A read ends with its segment: whoever waits for more of the one before would get no more.
            self.wake_all()
            # In the background: nobody waits for it, but it keeps what a crash makes us check short.
            self.turns.begin(self.turns.sync_log(self.log))


def _one_of(outcomes: asyncio.Future[list[Outcome]]) -> asyncio.Future[Appended]:
    """What becomes of one batch; raises what is wrong."""
    one: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    outcomes.add_done_callback(functools.partial(_tell_one, one))
    return one


def _tell_one(one: asyncio.Future[Appended], outcomes: asyncio.Future[list[Outcome]]) -> None:
    if one.done():
        return  # nobody waits any more; what was begun is finished all the same
    if outcomes.cancelled():
        one.cancel()
        return
    try:
        one.set_result(only(outcomes.result()))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is for who waits
        one.set_exception(error)
        one.exception()  # and it is no mistake when nobody does


def _copied(batches: Sequence[Checked]) -> list[Checked]:
    return [batch._replace(view=memoryview(bytearray(batch.view))) for batch in batches]


def _take_role(log: Log, leader_epoch: int, leads: bool) -> None:
    """In the writer's turn: what was appended in former epochs is in the log now, or never will be."""
    if leads:
        log.begin_epoch(leader_epoch)
