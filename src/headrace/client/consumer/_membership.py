"""A consumer's membership in its group, whatever the group's protocol: what the core and the commits need of it.

A rebalance is a flow: it may span many polls, and hands the listener's calls to the driver. The protocols are in
`_classic_membership` (members join together, and a leader assigns) and `_consumer_membership` (KIP-848: the coordinator
assigns, and heartbeats bring it).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from headrace.client.consumer._coordinator import CoordinatorLink
from headrace.client.consumer._heartbeats import GroupIdentity, Heartbeats, HeartbeatVerdict, News
from headrace.client.consumer._subscription import RebalanceListener, Subscriptions
from headrace.client.consumer.config import ConsumerSettings
from headrace.client.consumer.errors import say
from headrace.client.flows import Flow, Pause, UserCode
from headrace.errors import FencedInstanceIdError, HeadraceError, RetriableError, error_for
from headrace.functions import check_has_run
from headrace.net.connection import Call
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.client.consumer")

FOREVER = float("inf")


class Membership(ABC):
    """This consumer in its group. What is alike in both protocols is here."""

    def __init__(
        self, link: CoordinatorLink, subscriptions: Subscriptions, settings: ConsumerSettings, heartbeats: Heartbeats
    ) -> None:
        self.rebalances = 0
        self.fatal: HeadraceError | None = None
        self.is_closing = False
        self.before_rejoin: Callable[[], Flow[None]] | None = None
        """Commits what was read, before partitions may go to others."""
        self.on_heartbeats_begin: Callable[[], None] = lambda: None
        self._link = link
        self._subscriptions = subscriptions
        self._settings = settings
        self._heartbeats = heartbeats
        self._refused: HeadraceError | None = None
        """What the coordinator said to a heartbeat, if the application has to know."""
        self._joined = GroupIdentity(instance_id=settings.group_instance_id)
        self._seen_finds = 0

    # --- what others ask --------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def identity(self) -> GroupIdentity:
        """As whom this consumer commits now."""

    @property
    @abstractmethod
    def is_member(self) -> bool:
        """Whether the coordinator has taken this consumer in."""

    @property
    @abstractmethod
    def is_stable(self) -> bool:
        """Whether this is a member that is in no rebalance."""

    @property
    @abstractmethod
    def is_settled(self) -> bool:
        """Whether this is a member with nothing to do but to send heartbeats."""

    @property
    def last_identity(self) -> GroupIdentity:
        """As whom this consumer was last given partitions. Kept when the membership is lost: a transaction that commits
        the offsets of what was read then is to be refused, and who is nobody is not."""
        return self._joined

    @property
    def due_at(self) -> float:
        """When `check` has something new to say, if nothing arrives before."""
        return FOREVER

    @abstractmethod
    def identity_for_commit(self) -> GroupIdentity:
        """As whom to commit; raises while this consumer may not."""

    @abstractmethod
    def commit_refused(self, code: int, identity: GroupIdentity) -> None:
        """What the coordinator said to a commit of this identity's."""

    @abstractmethod
    def request_rejoin(self, reason: str) -> None:
        """Take part in a rebalance at the next poll."""

    @abstractmethod
    def rebalance(self) -> Flow[None]:
        """Until there is nothing left to do in the group. Raises what will not pass by itself."""

    @abstractmethod
    def leave(self, reason: str) -> None:
        """Give up the place in the group (a static member keeps its own), without waiting for an answer."""

    @abstractmethod
    def leave_for_good(self, reason: str, *, leave_group: bool | None) -> Flow[None]:
        """Give up the place and see that the coordinator took note, over another connection if this one is gone.

        Otherwise the group would wait for this member until its session is over, and its partitions with it.
        `leave_group` False stays in the group, True gives up even a static member's place.
        """

    @abstractmethod
    def _lose(self, why: str, *, keep_member_id: bool) -> None:
        """Not a member any more: its partitions are lost, not revoked."""

    @abstractmethod
    def _hear(self, news: News) -> None:
        """What a heartbeat brought that only one of the protocols has."""

    @abstractmethod
    def _has_work(self, now: float) -> bool:
        """Whether `rebalance` has something to do."""

    # --- what heartbeats bring --------------------------------------------------------------------------------------

    def check(self, now: float) -> bool:
        """Whether a rebalance has to be begun (or gone on with); takes in what heartbeats brought."""
        news = self._heartbeats.news
        if news is not None:
            # Forgotten when it is acted upon, and not before: what is interrupted here is done again.
            self._take_news(news)
            self._heartbeats.forget(news)
        if self.fatal is not None:
            raise self.fatal
        if self._refused is not None:
            refused, self._refused = self._refused, None
            raise refused
        if self._link.finds != self._seen_finds and self._link.node is not None:
            self._heartbeats.moved(self._link.node, now)
            # Only now: were it interrupted before, heartbeats would go on to the old one, or nowhere.
            self._seen_finds = self._link.finds
        return self._has_work(now)

    def _take_news(self, news: News) -> None:
        if not self._is_about_us(news):
            return
        verdict = news.verdict
        if verdict is HeartbeatVerdict.COORDINATOR_UNKNOWN:
            self._link.forget(verdict.value)
        elif verdict is HeartbeatVerdict.FENCED:
            self._fenced()
        elif verdict is HeartbeatVerdict.POLL_TIMEOUT:
            log.warning(
                "group %s: poll() was not called within max.poll.interval.ms (%s ms), so this consumer left the group "
                "and its partitions went to others. Process faster, lower max.poll.records, or raise that time",
                self._link.group_id,
                self._settings.max_poll_interval_ms,
            )
            # A static member's place is kept for it: it comes back under the same id.
            self._lose("poll() was not called in time", keep_member_id=False)
        elif verdict is HeartbeatVerdict.FAILED:
            # Raised once for each: it may pass (rights are given, a broker recovers), and heartbeats go on.
            self._refused = news.error or say(
                error_for(news.code, news.message), f"heartbeat of group {self._link.group_id}"
            )
        else:
            self._hear(news)

    def _is_about_us(self, news: News) -> bool:
        return news.identity == self.identity

    def _fenced(self) -> None:
        self.fatal = FencedInstanceIdError(
            f"another consumer joined group {self._link.group_id} with group.instance.id="
            f"{self._settings.group_instance_id}: give each its own. This consumer can only be closed"
        )
        self._lose("FENCED_INSTANCE_ID", keep_member_id=False)

    def _revoke_at_once(self) -> None:
        """Others may read them by now: nothing more is handed out, before the listener hears of it."""
        if self._subscriptions.uses_group:
            for state in self._subscriptions.states():
                state.is_revoked = True

    # --- the listener -----------------------------------------------------------------------------------------------

    def give_up_partitions(self) -> Flow[BaseException | None]:
        """Before leaving: tell the listener what goes."""
        owned = self._subscriptions.assigned()
        error: BaseException | None = None
        if owned and self._subscriptions.uses_group:
            error = yield from self._tell("revoked" if self._may_revoke else "lost", owned)
            self._subscriptions.assign([])
        return error

    @property
    def _may_revoke(self) -> bool:
        """Whether the partitions are still this member's."""
        return self.is_stable

    def _give_up_lost(self) -> Flow[BaseException | None]:
        owned = self._subscriptions.assigned()
        if not owned:
            return None
        error = yield from self._tell("lost", owned)
        self._subscriptions.assign([])
        return error

    def _tell(self, what: str, partitions: list[TopicPartition]) -> Flow[BaseException | None]:
        """Call the listener; what it raises is kept for later, so that the rebalance can go on."""
        method = _listener_method(self._subscriptions.listener, what)
        log.info("group %s: %s partitions %s", self._link.group_id, what, ", ".join(map(str, partitions)) or "none")
        if method is None:
            return None
        if what != "assigned":
            for partition in partitions:
                # Should this be interrupted, and should they be given back: then they are news to the listener.
                self._subscriptions.state(partition).in_callback = True
        try:
            check_has_run((yield UserCode(method, (partitions,))), f"on_partitions_{what}")
        except Exception as error:
            log.exception("the rebalance listener raised in on_partitions_%s", what)
            return error
        return None

    def _unanswered(self, call: Call) -> Flow[None]:
        if not isinstance(call.error, RetriableError):
            assert call.error is not None
            raise call.error
        self._link.forget(str(call.error))
        yield Pause(self._link.next_try())
        return None


def _listener_method(listener: RebalanceListener | None, what: str) -> Callable[[list[TopicPartition]], Any] | None:
    if listener is None:
        return None
    method = getattr(listener, f"on_partitions_{what}", None)
    if method is None and what == "lost":
        method = getattr(listener, "on_partitions_revoked", None)
    return method
