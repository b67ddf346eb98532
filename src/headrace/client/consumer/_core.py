"""A consumer without I/O: group, positions, fetching and commits, moved on by `advance` and by answers that arrive.

A driver calls `advance` from within its poll, runs the user's code it is handed, and takes records out. Everything that
takes several requests is a flow (see `client/flows.py`), so that both drivers share it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.assignors import Assignor
from headrace.client.arguments import check_offset
from headrace.client.cluster.core import ClientCore
from headrace.client.cluster.list_offsets import OffsetLookup
from headrace.client.cluster.topics import TopicQuestions, about_topic
from headrace.client.cluster.view import ClusterView
from headrace.client.consumer._classic_heartbeats import ClassicHeartbeats
from headrace.client.consumer._classic_membership import ClassicMembership
from headrace.client.consumer._collecting import RecordCollector
from headrace.client.consumer._commits import CommitCallback, OffsetCommits, Offsets
from headrace.client.consumer._consumer_heartbeats import ConsumerProtocolHeartbeats
from headrace.client.consumer._consumer_membership import ConsumerMembership, new_member_id
from headrace.client.consumer._coordinator import CoordinatorLink
from headrace.client.consumer._fetching import Fetcher
from headrace.client.consumer._group_leader import GroupLeader
from headrace.client.consumer._heartbeats import Heartbeats
from headrace.client.consumer._membership import Membership
from headrace.client.consumer._positions import Positions
from headrace.client.consumer._subscription import (
    RebalanceListener,
    SubscriptionKind,
    Subscriptions,
)
from headrace.client.consumer.config import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    ConsumerSettings,
)
from headrace.client.consumer.errors import IllegalStateError, NoOffsetForPartitionError
from headrace.client.consumer.records import ConsumerGroupMetadata, Deserializers, OffsetAndMetadata
from headrace.client.flows import Flow, Pause, Task, UserCode, When
from headrace.errors import (
    ErrorCode,
    HeadraceError,
    InvalidGroupIdError,
    RetriableError,
)
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.client.consumer")

_FOREVER = float("inf")
LEAVE_S_MAX = 5.0
"""How long a consumer that is closed tries to reach its coordinator again, if the time given to close is not over."""


class ConsumerCore:
    """One consumer's state. All of it on one thread; only `heartbeats` is shared with another."""

    def __init__(
        self,
        core: ClientCore,
        settings: ConsumerSettings,
        assignors: Sequence[Assignor],
        deserializers: Deserializers,
        notify: Callable[[], None],
        on_commit: Callable[[Offsets], None] = lambda _: None,
    ) -> None:
        self.core = core
        self.settings = settings
        self.subscriptions = Subscriptions()
        self.fetcher = Fetcher(core, self.subscriptions, settings, notify)
        self.collector = RecordCollector(self.fetcher, deserializers, settings.max_poll_records)
        self.lookup = OffsetLookup(core, settings.isolation, notify)
        self.topics = TopicQuestions(core, settings, notify)
        self.heartbeats: Heartbeats | None = None
        self.membership: Membership | None = None
        self.commits: OffsetCommits | None = None
        self.link: CoordinatorLink | None = None
        self._notify = notify
        self._rebalance: Task[None] | None = None
        self._round: Task[None] | None = None
        self._finding: Task[int] | None = None
        self._auto_commit_at = _FOREVER
        self._due = _FOREVER
        # A poll that waits says so in time: several times in every max.poll.interval.ms.
        self._alive_s = _FOREVER if settings.group_id is None else settings.max_poll_interval_ms / 4000
        self._held: HeadraceError | None = None
        self.is_closed = False
        """Whether it was closed, perhaps by user code that `advance` ran: then a poll has nothing more to do."""
        core.topics = set()
        core.allow_auto_topic_creation = settings.allow_auto_create_topics
        core.listeners.append(self._metadata_changed)
        if settings.group_id is not None:
            self._join_up(settings, settings.group_id, assignors, on_commit)
        self.positions = Positions(core, self.subscriptions, settings, self.lookup, self.commits, notify)

    def _join_up(
        self,
        settings: ConsumerSettings,
        group_id: str,
        assignors: Sequence[Assignor],
        on_commit: Callable[[Offsets], None],
    ) -> None:
        self.link = link = CoordinatorLink(self.core, group_id, self._notify)
        if settings.uses_consumer_protocol:
            self.heartbeats, self.membership = self._consumer_protocol(settings, group_id, link)
            leader = None
        else:
            leader = GroupLeader(self.core, self.subscriptions, self.lookup, self._notify)
            self.heartbeats, self.membership = self._classic_protocol(settings, group_id, link, leader, assignors)
        self.commits = OffsetCommits(
            link,
            self.subscriptions,
            self.membership,
            require_stable=settings.isolation == READ_COMMITTED,
            on_commit=on_commit,
        )
        if leader is not None:
            leader.commits = self.commits
        if settings.auto_commit:
            self.membership.before_rejoin = self._commit_before_rejoin

    def _classic_protocol(
        self,
        settings: ConsumerSettings,
        group_id: str,
        link: CoordinatorLink,
        leader: GroupLeader,
        assignors: Sequence[Assignor],
    ) -> tuple[Heartbeats, Membership]:
        heartbeats = ClassicHeartbeats(
            group_id,
            interval_ms=settings.heartbeat_interval_ms,
            session_timeout_ms=settings.session_timeout_ms,
            max_poll_interval_ms=settings.max_poll_interval_ms,
        )
        return heartbeats, ClassicMembership(
            self.core, link, self.subscriptions, settings, assignors, heartbeats, leader
        )

    def _consumer_protocol(
        self, settings: ConsumerSettings, group_id: str, link: CoordinatorLink
    ) -> tuple[Heartbeats, Membership]:
        heartbeats = ConsumerProtocolHeartbeats(
            group_id,
            member_id=new_member_id(self.core.rng),
            instance_id=settings.group_instance_id,
            rack=settings.rack or None,
            assignor=settings.remote_assignor,
            session_timeout_ms=settings.session_timeout_ms,
            max_poll_interval_ms=settings.max_poll_interval_ms,
        )
        return heartbeats, ConsumerMembership(self.core, link, self.subscriptions, settings, heartbeats, self.topics)

    # --- what to read -----------------------------------------------------------------------------------------------

    def subscribe(self, topics: Collection[str], listener: RebalanceListener | None) -> None:
        self._need_group("subscribe")
        if isinstance(topics, str):
            raise TypeError(
                f"subscribe takes a list of topics: [{topics!r}], or a compiled pattern: re.compile({topics!r})"
            )
        for topic in topics:
            if not isinstance(topic, str) or not topic.strip():
                raise ValueError(f"a topic's name is text that is not empty, not {topic!r}")
        if not topics:
            raise ValueError("subscribe takes at least one topic; to read nothing, call unsubscribe()")
        self.subscriptions.subscribe(topics, listener)
        self.core.topics = set()
        for topic in topics:
            self.core.add_topic(topic)

    def subscribe_pattern(self, pattern: re.Pattern[str], listener: RebalanceListener | None) -> None:
        self._need_group("subscribe")
        self.subscriptions.subscribe_pattern(pattern, listener)
        self.core.topics = None
        self.core.refresh_metadata()

    def subscribe_server_pattern(self, pattern: str, listener: RebalanceListener | None) -> None:
        self._need_group("subscribe")
        if not self.settings.uses_consumer_protocol:
            raise IllegalStateError(
                "SubscriptionPattern needs group.protocol=consumer: with classic, subscribe to re.compile(…)"
            )
        self.subscriptions.subscribe_server_pattern(pattern, listener)
        self.core.topics = self.core.topics or set()

    def assign(self, wanted: Sequence[TopicPartition]) -> None:
        for partition in wanted:
            if not partition.topic or partition.partition < 0:
                raise ValueError(f"{partition!r} is not a topic and a partition number")
        if self.commits is not None and self.settings.auto_commit:
            self.commits.commit_async(self.commits.consumed(), None)
        self.subscriptions.assign_by_hand(wanted)
        # What is known of a topic stays known: who reads one range after the other assigns often.
        self.core.topics = self.subscriptions.topics & (self.core.topics or set())
        for topic in self.subscriptions.topics:
            self.core.add_topic(topic)
        self._schedule_auto_commit()

    def _need_group(self, what: str) -> None:
        if self.settings.group_id is None:
            raise InvalidGroupIdError(f"{what} needs a group: set group.id (or use assign() to read without a group)")

    def _metadata_changed(self, view: ClusterView) -> None:
        if self.subscriptions.kind is SubscriptionKind.PATTERN:
            names = [(topic.name, topic.is_internal) for topic in view.topics.values() if not topic.error_code]
            if self.subscriptions.match(names, exclude_internal=self.settings.exclude_internal_topics):
                log.info("the pattern now matches %s", sorted(self.subscriptions.topics) or "nothing")
        for name in self.subscriptions.topics | self.subscriptions.group_topics:
            topic = view.topics.get(name)
            if topic is None:
                continue
            if topic.error_code in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION):
                self._held = about_topic(topic)
        self._notify()

    # --- moving on --------------------------------------------------------------------------------------------------

    def polled(self) -> None:
        """The application called poll: it is alive."""
        if self.subscriptions.kind is SubscriptionKind.NONE:
            raise IllegalStateError("nothing to read: subscribe() to topics, or assign() partitions, before polling")
        self.is_alive()

    def is_alive(self) -> None:
        """The application is in poll, however long that takes: `max.poll.interval.ms` is about when it is not."""
        if self.heartbeats is not None:
            self.heartbeats.polled(self.core.clock.monotonic())

    def advance(self) -> tuple[Task[Any], UserCode] | None:
        """Do what can be done now. User code that is handed back is to be run and reported to its task; then again.

        Raises what the application has to know.
        """
        if self.is_closed:
            return None
        now = self.core.clock.monotonic()
        self._due = _FOREVER
        if self._held is not None:
            held, self._held = self._held, None
            raise held
        if self.commits is not None:
            self.commits.run_callbacks()
            if self.is_closed:  # by a callback
                return None  # type: ignore[unreachable]  # mypy does not know what callbacks do
            if self.settings.auto_commit:
                self._auto_commit(now)
        code = self._advance_group(now)
        if code is not None:
            return code
        self._advance_positions(now)
        self._due = min(self._due, self.fetcher.send(now))
        return None

    def is_at_rest(self) -> bool:
        """Whether `advance` would do nothing, provided that no bytes moved and nobody asked for anything since."""
        membership, heartbeats, commits = self.membership, self.heartbeats, self.commits
        return (
            self._held is None
            and self._rebalance is None
            and self._round is None
            and self._finding is None
            and not self.fetcher.has_room
            and (commits is None or commits.is_idle)
            and (heartbeats is None or not heartbeats.has_news)
            and (membership is None or not self.subscriptions.uses_group or membership.is_settled)
            and self.core.clock.monotonic() < min(self._due, self._auto_commit_at)
        )

    @property
    def awaits_answers(self) -> bool:
        """Whether something is under way that does not wait for records: a rebalance, a commit, a position."""
        return (
            self._rebalance is not None
            or self._round is not None
            or self._finding is not None
            or (self.commits is not None and not self.commits.is_idle)
        )

    def prefetch(self) -> bool:
        """Ask for what comes after the records that are handed out now. Whether there was something to look for."""
        if not self.fetcher.has_room:
            return False
        self.fetcher.send(self.core.clock.monotonic())
        return True

    def due_s(self) -> float:
        """Seconds until `advance` has something to do, if nothing arrives before."""
        # A commit that is due waits for the end of a rebalance: until then there is nothing to come back for.
        due = self._due if self._rebalance is not None else min(self._due, self._auto_commit_at)
        for task in (self._rebalance, self._round, self._finding):
            if task is not None and not task.done:
                due = min(due, task.due())
        if self.membership is not None and self._rebalance is None:
            due = min(due, self.membership.due_at)
        return max(0.0, min(due - self.core.clock.monotonic(), self._alive_s))

    def _advance_group(self, now: float) -> tuple[Task[Any], UserCode] | None:
        membership, link = self.membership, self.link
        if membership is None or link is None:
            return None
        if self.subscriptions.uses_group:
            if self._rebalance is None and membership.check(now):
                if self.subscriptions.kind is SubscriptionKind.PATTERN and self.core.view.version == 0:
                    return None
                self._rebalance = Task(membership.rebalance())
            elif self._rebalance is not None:
                membership.check(now)
            if self._rebalance is not None:
                code = self._rebalance.advance(now)
                if code is not None:
                    return self._rebalance, code
                if self._rebalance.done:
                    task, self._rebalance = self._rebalance, None
                    self._schedule_auto_commit()
                    if task.error is not None:
                        raise task.error
        self._find_coordinator(now, link)
        return None

    def _find_coordinator(self, now: float, link: CoordinatorLink) -> None:
        """While the group is stable: keep the coordinator known, for heartbeats and commits."""
        assert self.commits is not None
        wanted = self.subscriptions.uses_group or self.commits.has_unsent
        if self._finding is None:
            if link.node is not None or not wanted or self._rebalance is not None:
                return
            self._finding = Task(link.find())
        self._finding.advance(now)
        if self._finding.done:
            task, self._finding = self._finding, None
            if task.error is not None:
                if isinstance(task.error, HeadraceError):
                    self.commits.fail_unsent(task.error)
                raise task.error

    def _advance_positions(self, now: float) -> None:
        if self._round is None:
            has_work, due = self.positions.pending(now)
            if not has_work:
                self._due = min(self._due, due)
                return
            self._round = Task(self.positions.round())
        self._round.advance(now)
        if self._round.done:
            task, self._round = self._round, None
            if task.error is not None:
                raise task.error
            _, due = self.positions.pending(now)
            self._due = min(self._due, due)

    # --- commits ----------------------------------------------------------------------------------------------------

    def _schedule_auto_commit(self) -> None:
        if self.settings.auto_commit:
            self._auto_commit_at = self.core.clock.monotonic() + self.settings.auto_commit_interval_s

    def _auto_commit(self, now: float) -> None:
        """Commit what was handed out by earlier polls: the application polls again, so it has processed them."""
        if now < self._auto_commit_at or self.commits is None or self._rebalance is not None:
            return
        self._auto_commit_at = now + self.settings.auto_commit_interval_s
        membership = self.membership
        if self.subscriptions.uses_group and (membership is None or not membership.is_stable):
            return
        # One at a time: while the coordinator cannot be reached, they would only pile up.
        if self.commits.has_one_for(self._auto_committed):
            return
        offsets = self.commits.consumed()
        if offsets:
            self.commits.commit_async(offsets, self._auto_committed)

    def _auto_committed(self, error: HeadraceError | None, offsets: Offsets) -> None:
        if error is None:
            return
        log.warning("the automatic commit of %s partitions failed: %s", len(offsets), error)
        if isinstance(error.__cause__, RetriableError):
            backoff_s = self.settings.retry_backoff.wait_ms(0, self.core.rng) / 1000
            self._auto_commit_at = min(self._auto_commit_at, self.core.clock.monotonic() + backoff_s)

    def _commit_before_rejoin(self) -> Flow[None]:
        """As far as it goes within the request time-out: the group does not wait for us for ever."""
        assert self.commits is not None
        offsets = self.commits.consumed()
        task = Task(self.commits.commit(offsets))
        until = (
            self.core.clock.monotonic()
            + min(self.settings.max_poll_interval_ms, self.settings.request_timeout_ms) / 1000
        )
        yield from self._bounded(task, until)
        if not task.done:
            task.cancel()
            log.warning("the automatic commit before rejoining did not end in time; records may be read twice")
        elif task.error is not None:
            log.warning("the automatic commit before rejoining failed (records may be read twice): %s", task.error)

    def _bounded(self, task: Task[Any], until: float) -> Flow[None]:
        """Run a flow inside another, but not for longer than that."""
        while not task.done:
            now = self.core.clock.monotonic()
            task.advance(now)
            if task.done or now >= until:
                return
            yield When(lambda: _can_move(task, self.core.clock.monotonic()), min(until, task.due()))

    def commit_offsets(self, offsets: Mapping[Any, Any] | None) -> Offsets:
        """What a commit is to keep: given offsets in any of the usual shapes, or everything that was read."""
        commits = self.need_commits("commit")
        if offsets is None:
            return commits.consumed()
        made: Offsets = {}
        for partition, one in offsets.items():
            value = one if isinstance(one, OffsetAndMetadata) else OffsetAndMetadata(one)
            offset = check_offset(value.offset, f"commit for {partition} the offset")
            made[TopicPartition(*partition)] = replace(value, offset=offset)
        return made

    def need_commits(self, what: str) -> OffsetCommits:
        if self.commits is None:
            raise InvalidGroupIdError(f"{what} needs a group, whose offsets they are: set group.id")
        return self.commits

    def commit_async(self, offsets: Mapping[Any, Any] | None, callback: CommitCallback | None) -> None:
        self.need_commits("commit").commit_async(self.commit_offsets(offsets), callback)

    def commit(self, offsets: Mapping[Any, Any] | None) -> Flow[None]:
        commits = self.need_commits("commit")
        yield from commits.commit(self.commit_offsets(offsets))

    # --- positions and offsets --------------------------------------------------------------------------------------

    def seek(self, partition: Any, offset: int | OffsetAndMetadata) -> None:
        epoch = -1
        if isinstance(offset, OffsetAndMetadata):
            epoch = -1 if offset.leader_epoch is None else offset.leader_epoch
            offset = offset.offset
        self.subscriptions.seek(partition, check_offset(offset, "seek to"), epoch)

    def seek_to(self, partitions: Iterable[Any] | None, *, beginning: bool) -> None:
        """Lazily, as in Kafka: the offset is looked up by the next poll or position()."""
        chosen = list(partitions) if partitions else self.subscriptions.assigned()
        for partition in chosen:
            self.subscriptions.state(partition)
        for partition in chosen:
            self.subscriptions.request_reset(partition, EARLIEST if beginning else LATEST)

    def position(self, partition: Any) -> Flow[int]:
        """The next offset that will be handed out; looked up if it is not known yet."""
        state = self.subscriptions.state(partition)
        while not state.has_position or state.position is None:
            now = self.core.clock.monotonic()
            if self._round is None:
                has_work, due = self.positions.pending(now, state)
                if not has_work:
                    yield Pause(due if due != _FOREVER else now + 0.1)
                    continue
                self._round = Task(self.positions.round(state))
            task = self._round
            task.advance(now)
            if task.done:
                self._round = None
                if task.error is not None:
                    if (
                        isinstance(task.error, NoOffsetForPartitionError)
                        and state.partition not in task.error.partitions
                    ):
                        continue
                    raise task.error
                continue
            yield When(lambda task=task: _can_move(task, self.core.clock.monotonic()), task.due())  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        return state.position

    def current_lag(self, partition: Any) -> int | None:
        """Records between the position and the end of what may be read, as of the last fetch; None: not known yet."""
        state = self.subscriptions.state(partition)
        end = state.last_stable_offset if self.settings.isolation == READ_COMMITTED else state.high_watermark
        return None if end is None or state.position is None or not state.has_position else max(0, end - state.position)

    # --- the end ----------------------------------------------------------------------------------------------------

    def group_metadata(self) -> ConsumerGroupMetadata:
        self._need_group("group_metadata")
        assert self.membership is not None
        assert self.settings.group_id is not None
        identity = self.membership.last_identity
        return ConsumerGroupMetadata(
            self.settings.group_id, identity.generation_id, identity.member_id, identity.instance_id
        )

    def unsubscribe(self) -> Flow[None]:
        """Give up everything; leaves the group."""
        if self._rebalance is not None:
            self._rebalance.cancel()
            self._rebalance = None
        error: BaseException | None = None
        if self.membership is not None and self.subscriptions.uses_group:
            error = yield from self.membership.give_up_partitions()
            self.membership.leave("unsubscribed")
        if self._round is not None:
            self._round.cancel()
            self._round = None
        self.subscriptions.unsubscribe()
        self.core.topics = set()
        self._auto_commit_at = _FOREVER
        if error is not None:
            raise error

    def close(self, *, leave_group: bool | None, until: float = _FOREVER) -> Flow[None]:
        """Commit (if that is automatic), tell the listener, leave. What is left to commit is given up at `until`; how
        long the rest may take is bounded by the caller."""
        error: BaseException | None = None
        self.is_closed = True
        if self._rebalance is not None:
            self._rebalance.cancel()
            self._rebalance = None
        membership, commits = self.membership, self.commits
        if commits is not None and membership is not None:
            membership.is_closing = True
            task = Task(self._last_commits(commits, membership))
            yield from self._bounded(task, until)
            error = task.error or task.result
            if not task.done:
                # The listener hears of the partitions all the same.
                task.cancel()
                log.warning("closed before the last commits were answered: records may be read twice")
            error = (yield from membership.give_up_partitions()) or error
            self.fetcher.close_sessions()
            yield from self._leave(membership, leave_group)
        else:
            self.fetcher.close_sessions()
        if error is not None:
            raise error

    def _last_commits(self, commits: OffsetCommits, membership: Membership) -> Flow[BaseException | None]:
        """Commit what was read, if that is automatic, and see every commit answered. What a callback raised, if any."""
        error: BaseException | None = None
        if self.settings.auto_commit and (membership.is_member or not self.subscriptions.uses_group):
            try:
                yield from commits.commit(commits.consumed())
            except HeadraceError as failed:
                log.warning("the automatic commit on close failed (records may be read twice): %s", failed)
            except Exception as failed:  # noqa: BLE001 - a callback's; what is left to do is done before it is raised
                error = failed
        while not commits.is_idle:
            try:
                yield from commits.drain()
            except Exception as failed:  # noqa: BLE001 - a callback's; the others are called, and the group is left
                error = error or failed
        return error

    def _leave(self, membership: Membership, leave_group: bool | None) -> Flow[None]:
        """Leave the group. A coordinator that cannot be reached holds up the end of the consumer for a while only."""
        task = Task(membership.leave_for_good("is closed", leave_group=leave_group))
        yield from self._bounded(task, self.core.clock.monotonic() + LEAVE_S_MAX)
        why = task.error if task.done else f"the coordinator did not answer within {LEAVE_S_MAX:.0f} s"
        task.cancel()
        if why is not None:
            log.warning("closed without having left the group, which waits for the session's end: %s", why)

    def leave_in_a_hurry(self) -> None:
        """The time to close is over: say goodbye without waiting for an answer."""
        if self.membership is not None and self.membership.is_member:
            self.membership.leave("is closed")

    def metrics(self) -> dict[str, float]:
        """Counters, under Kafka's names."""
        lags = [lag for name in self.subscriptions.assigned() if (lag := self.current_lag(name)) is not None]
        found = {
            "records-consumed-total": float(self.fetcher.metrics.records_consumed),
            "bytes-consumed-total": float(self.fetcher.metrics.bytes_consumed),
            "fetch-total": float(self.fetcher.metrics.fetches),
            "records-lag-max": float(max(lags, default=0)),
            "assigned-partitions": float(len(self.subscriptions.assigned())),
        }
        if self.membership is not None and self.heartbeats is not None and self.commits is not None:
            found["rebalance-total"] = float(self.membership.rebalances)
            found["heartbeat-total"] = float(self.heartbeats.sent)
            found["commit-total"] = float(self.commits.commits)
        return found


def _can_move(task: Task[Any], now: float) -> bool:
    """Whether a task inside a flow has something to do."""
    return task.is_ready(now)
