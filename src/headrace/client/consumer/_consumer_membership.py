"""Membership by the consumer protocol (KIP-848), without I/O: the coordinator assigns, and each member puts what it is
assigned into effect by itself. Nobody waits for others, and what stays is read on meanwhile.

Heartbeats bring the assignment (see `_consumer_heartbeats`). What is no longer in it is committed and given up, and the
next heartbeat says so; only then does the coordinator give it to others.
"""

from __future__ import annotations

import base64
import logging
import random

from headrace.client.cluster.coordinator import NOT_THE_COORDINATOR
from headrace.client.cluster.core import ClientCore
from headrace.client.cluster.topics import TopicQuestions
from headrace.client.consumer._consumer_heartbeats import ConsumerProtocolHeartbeats, SentSubscription, TargetAssignment
from headrace.client.consumer._coordinator import CoordinatorLink
from headrace.client.consumer._heartbeats import GroupIdentity, HeartbeatVerdict, News
from headrace.client.consumer._membership import FOREVER, Membership
from headrace.client.consumer._subscription import Subscriptions
from headrace.client.consumer.config import ConsumerSettings
from headrace.client.consumer.errors import CommitFailedError, RebalanceListenerError
from headrace.client.flows import Flow, Pause, When
from headrace.errors import ErrorCode, UnsupportedVersionError
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.client.consumer")

_NOT_FOUND_S = 0.5
"""After so long a topic that no broker could name is asked for again: it may just have been created."""
_ANSWER_S_MAX = 1.0
"""So long a consumer that is closed waits for the answer to a heartbeat that is under way, before it leaves."""


def new_member_id(rng: random.Random) -> str:
    """A member names itself, once for its life: 16 random bytes, written as Kafka writes its ids."""
    return base64.urlsafe_b64encode(rng.randbytes(16)).decode().rstrip("=")


class ConsumerMembership(Membership):
    """This consumer in a group whose coordinator assigns."""

    def __init__(
        self,
        core: ClientCore,
        link: CoordinatorLink,
        subscriptions: Subscriptions,
        settings: ConsumerSettings,
        heartbeats: ConsumerProtocolHeartbeats,
        topics: TopicQuestions,
    ) -> None:
        super().__init__(link, subscriptions, settings, heartbeats)
        self._core = core
        self._beats = heartbeats
        self._topics = topics
        self._done_target: TargetAssignment | None = None
        """The assignment that is in effect."""
        self._look_again_at = FOREVER
        """When topics of that assignment which could not be named are looked for again."""

    # --- what others ask --------------------------------------------------------------------------------------------

    @property
    def identity(self) -> GroupIdentity:
        return self._beats.identity

    @property
    def is_member(self) -> bool:
        return self._beats.is_running and self._beats.identity.generation_id > 0

    @property
    def is_stable(self) -> bool:
        return self.is_member and not self._is_news_pending and self._beats.target is self._done_target

    @property
    def is_settled(self) -> bool:
        return self.is_stable and self._look_again_at == FOREVER and self._refused is None and self.fatal is None

    @property
    def last_identity(self) -> GroupIdentity:
        if self.is_member:
            # Epochs go up for what happens to others, too: offsets are committed with the newest.
            self._joined = self._beats.identity
        return self._joined

    @property
    def due_at(self) -> float:
        return self._look_again_at

    @property
    def _may_revoke(self) -> bool:
        return self.is_member

    @property
    def _is_news_pending(self) -> bool:
        news = self._beats.news
        return news is not None and news.verdict is not HeartbeatVerdict.COORDINATOR_UNKNOWN

    def identity_for_commit(self) -> GroupIdentity:
        if not self._subscriptions.uses_group:
            return GroupIdentity()
        news = self._beats.news
        is_lost = news is not None and news.verdict in (HeartbeatVerdict.LOST, HeartbeatVerdict.FENCED)
        if self.is_member and not is_lost:
            return self._beats.identity
        raise CommitFailedError(
            "offsets cannot be committed: this consumer is not a member of the group (any more). It joins in poll(); "
            "if it was a member before, poll() was not called within max.poll.interval.ms"
        )

    def commit_refused(self, code: int, identity: GroupIdentity) -> None:
        if identity != self.identity:
            return
        if code == ErrorCode.STALE_MEMBER_EPOCH:
            self._beats.ask_now(self._core.clock.monotonic())
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.FENCED_MEMBER_EPOCH):
            self._lose(ErrorCode(code).name, keep_member_id=True)
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            self._fenced()

    def request_rejoin(self, reason: str) -> None:
        log.warning(
            "group %s: with group.protocol=consumer it is the coordinator that decides when to rebalance; "
            "enforce_rebalance() has no effect (%s)",
            self._link.group_id,
            reason,
        )

    def _has_work(self, now: float) -> bool:
        if not self._beats.is_running:
            return True
        wanted = self._subscription()
        if wanted != self._beats.subscription:
            self._beats.subscribe(wanted, now)
        return self.is_member and (self._beats.target is not self._done_target or now >= self._look_again_at)

    def _subscription(self) -> SentSubscription:
        subscriptions = self._subscriptions
        if subscriptions.server_pattern is not None:
            return SentSubscription(pattern=subscriptions.server_pattern)
        return SentSubscription(tuple(sorted(subscriptions.topics)))

    def _hear(self, news: News) -> None:
        if news.verdict is HeartbeatVerdict.LOST:
            self._lose(ErrorCode(news.code).name, keep_member_id=True)

    def _take_news(self, news: News) -> None:
        super()._take_news(news)
        if isinstance(self._refused, UnsupportedVersionError):
            self._refused = UnsupportedVersionError(
                f"group {self._link.group_id}: the broker does not serve group.protocol=consumer (KIP-848; Apache "
                "Kafka has it since 4.0, and may have it switched off): use group.protocol=classic. "
                f"{self._refused.message}"
            )
        if news.verdict is HeartbeatVerdict.FAILED and not news.identity.generation_id and self._is_about_us(news):
            # It did not join: the next poll tries again, from the start.
            self._beats.stop()

    def _is_about_us(self, news: News) -> bool:
        # The epoch may have gone up since.
        return news.identity.member_id == self._beats.member_id

    def _lose(self, why: str, *, keep_member_id: bool) -> None:
        self.last_identity  # noqa: B018 - kept for transactions that read under it
        self._beats.stop()
        self._done_target, self._look_again_at = None, FOREVER
        self._revoke_at_once()
        log.info("group %s: this consumer lost its membership (%s)", self._link.group_id, why)

    # --- the rebalance ----------------------------------------------------------------------------------------------

    def rebalance(self) -> Flow[None]:
        listener_error: BaseException | None = None
        while self._has_work(self._core.clock.monotonic()):
            if not self._beats.is_running:
                # They are gone whether the coordinator can be found or not.
                listener_error = (yield from self._give_up_lost()) or listener_error
                yield from self._link.find()
                self._join()
            else:
                listener_error = (yield from self._reconcile()) or listener_error
        if listener_error is not None:
            failed = RebalanceListenerError(f"the rebalance listener raised {listener_error!r}; the rebalance went on")
            raise failed from listener_error

    def _join(self) -> None:
        if self.fatal is not None:
            raise self.fatal
        if self._link.node is None:
            return
        self._done_target, self._look_again_at = None, FOREVER
        # First somebody to send them: with the join it has begun, whatever interrupts it after that.
        self.on_heartbeats_begin()
        self._beats.join(self._subscription(), self._link.node, self._core.clock.monotonic())
        # It was just told of this coordinator: a second join is not sent to it.
        self._seen_finds = self._link.finds

    def _is_lost(self) -> bool:
        """Asked anew after each wait."""
        return not self.is_member

    def _reconcile(self) -> Flow[BaseException | None]:
        """Put the newest assignment into effect. Whatever ends this early, the next poll begins it again."""
        subscriptions, target = self._subscriptions, self._beats.target
        assert target is not None
        names = yield from self._topics.names_of({topic_id for topic_id, _ in target.partitions})
        wanted = {
            TopicPartition(names[topic_id], partition): (topic_id, partition)
            for topic_id, partition in sorted(target.partitions, key=lambda one: (names.get(one[0], ""), one[1]))
            if topic_id in names
        }
        error: BaseException | None = None
        revoked = [partition for partition in subscriptions.assigned() if partition not in wanted]
        if revoked:
            for partition in revoked:
                subscriptions.state(partition).is_revoked = True
            if self.before_rejoin is not None:
                yield from self.before_rejoin()
            if self._is_lost():
                # While that was committed, all of it was lost.
                return None
            error = yield from self._tell("revoked", revoked)
            if self._is_lost():
                return error
        self._beats.takes(wanted.values())
        has_changed = bool(revoked) or any(subscriptions.get(partition) is None for partition in wanted)
        added = subscriptions.assign(wanted, in_callback=True)
        for partition in wanted:
            self._core.add_topic(partition.topic)
        if subscriptions.server_pattern is not None:
            subscriptions.topics = {partition.topic for partition in wanted}
        if has_changed or added:
            error = (yield from self._tell("assigned", added)) or error
            self.rebalances += 1
        subscriptions.end_callback()
        if self._is_lost():
            return error
        now = self._core.clock.monotonic()
        # Before it counts as done: what the coordinator does not hear of it would take for free.
        self._beats.owns(wanted.values(), now)
        self._look_again_at = now + _NOT_FOUND_S if len(wanted) < len(target.partitions) else FOREVER
        self._done_target = target
        self._joined = self._beats.identity
        self._link.succeeded()
        return error

    # --- the end ----------------------------------------------------------------------------------------------------

    def leave(self, reason: str) -> None:
        was_joining = self._beats.is_running
        self._forget()
        if was_joining:
            log.info("group %s: leaving because the consumer %s", self._link.group_id, reason)
            self._link.submit(self._beats.leave_request(even_static=False))

    def leave_for_good(self, reason: str, *, leave_group: bool | None) -> Flow[None]:
        if not self._beats.is_running:
            return
        if leave_group is False and self._settings.group_instance_id is None:
            self._forget()
            return
        # One that is still on its way could join again what has left.
        self._beats.end()
        yield When(lambda: not self._beats.is_in_flight, self._core.clock.monotonic() + _ANSWER_S_MAX)
        log.info("group %s: leaving because the consumer %s", self._link.group_id, reason)
        while True:
            yield from self._link.find()
            call = self._link.submit(self._beats.leave_request(even_static=leave_group is True))
            if call is None:
                continue
            yield call
            if call.error is not None:
                yield from self._unanswered(call)
                continue
            code = call.response.error_code
            if code in NOT_THE_COORDINATOR:
                self._link.forget(ErrorCode(code).name)
            elif code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                # Whatever else it says (that it knows no such member, for one), asking again changes nothing.
                break
            yield Pause(self._link.next_try())
        self._forget()

    def _forget(self) -> None:
        self._done_target, self._look_again_at = None, FOREVER
        self._beats.stop()
