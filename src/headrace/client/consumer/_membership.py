"""Membership in a group, without I/O: join, sync, rejoin, leave; what is revoked and assigned, and when (SPEC 4.2-4.6).

A rebalance is a flow: it may span many polls, and hands the listener's calls to the driver. Eager members give up all
partitions before they rejoin; cooperative ones keep reading, and give up only what moves (KIP-429).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from headrace.assignors import (
    PROTOCOL_TYPE,
    Assignment,
    Assignor,
    RebalanceProtocol,
    Subscription,
    decode_assignment,
    encode_subscription,
)
from headrace.client.cluster.coordinator import NOT_THE_COORDINATOR
from headrace.client.cluster.core import ClientCore
from headrace.client.consumer._coordinator import CoordinatorLink
from headrace.client.consumer._group_leader import GroupLeader
from headrace.client.consumer._heartbeats import GroupIdentity, Heartbeats, HeartbeatVerdict, News, leave_request
from headrace.client.consumer._subscription import RebalanceListener, Subscriptions
from headrace.client.consumer.config import ConsumerSettings
from headrace.client.consumer.errors import CommitFailedError, RebalanceListenerError, say
from headrace.client.flows import Flow, Pause, UserCode
from headrace.errors import (
    ErrorCode,
    FencedInstanceIdError,
    HeadraceError,
    InconsistentGroupProtocolError,
    RebalanceInProgressError,
    RetriableError,
    error_for,
)
from headrace.functions import check_has_run
from headrace.net.connection import Call
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from headrace.protocol.messages.leave_group import LeaveGroupRequest
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.client.consumer")

_JOIN_EXTRA_MS = 5_000
_REASON_MAX = 255


class MemberState(Enum):
    UNJOINED = "unjoined"
    PREPARING = "preparing the rebalance"
    COMPLETING = "completing the rebalance"
    STABLE = "stable"


class GroupMembership:
    """This consumer in its group."""

    def __init__(
        self,
        core: ClientCore,
        link: CoordinatorLink,
        subscriptions: Subscriptions,
        settings: ConsumerSettings,
        assignors: Sequence[Assignor],
        heartbeats: Heartbeats,
        leader: GroupLeader,
    ) -> None:
        self.state = MemberState.UNJOINED
        self.generation_id = -1
        self.member_id = ""
        self.protocol_name: str | None = None
        self.rejoin_needed = True
        self.rebalances = 0
        self.fatal: HeadraceError | None = None
        self.is_closing = False
        self.before_rejoin: Callable[[], Flow[None]] | None = None
        """Commits what was read, before partitions may go to others."""
        self.on_heartbeats_begin: Callable[[], None] = lambda: None
        self._core = core
        self._link = link
        self._subscriptions = subscriptions
        self._settings = settings
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._protocol = rebalance_protocol(assignors)
        self._heartbeats = heartbeats
        self._leader = leader
        self._refused: HeadraceError | None = None
        """What the coordinator said to a heartbeat, if the application has to know."""
        self._prepared = False
        self._unfinished = False
        """Whether an assignment came and was not put into effect, because the rebalance was interrupted there."""
        self._joined = GroupIdentity(instance_id=settings.group_instance_id)
        self._reason = "the consumer joins for the first time"
        self._joined_topics: set[str] | None = None
        self._seen_finds = 0

    # --- what others ask --------------------------------------------------------------------------------------------

    @property
    def identity(self) -> GroupIdentity:
        return GroupIdentity(self.generation_id, self.member_id, self._settings.group_instance_id)

    @property
    def is_member(self) -> bool:
        return self.generation_id >= 0

    @property
    def is_settled(self) -> bool:
        """Whether this is a member with nothing to do but to send heartbeats."""
        return (
            self.state is MemberState.STABLE
            and not self.rejoin_needed
            and not self._unfinished
            and self._refused is None
            and self.fatal is None
        )

    @property
    def last_identity(self) -> GroupIdentity:
        """As whom this consumer was last given partitions. Kept when the membership is lost: a transaction that commits
        the offsets of what was read then is to be refused, and who is nobody is not."""
        return self._joined

    def identity_for_commit(self) -> GroupIdentity:
        if not self._subscriptions.uses_group:
            return GroupIdentity()
        if self.is_member and (self.state is MemberState.STABLE or self.is_closing):
            # Who is about to go commits what it read as long as the group takes it, be it in a rebalance.
            return self.identity
        if self.state in (MemberState.PREPARING, MemberState.COMPLETING):
            raise RebalanceInProgressError(
                "offsets cannot be committed while the group rebalances: poll() until it is done, then commit again"
            )
        raise CommitFailedError(
            "offsets cannot be committed: this consumer is not a member of the group (any more). It joins in poll(); "
            "if it was a member before, poll() was not called within max.poll.interval.ms"
        )

    def commit_refused(self, code: int, identity: GroupIdentity) -> None:
        if identity != self.identity:
            return
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.request_rejoin("a commit found the group rebalancing")
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self._lose(ErrorCode(code).name, keep_member_id=code == ErrorCode.ILLEGAL_GENERATION)
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            self._fenced()

    def request_rejoin(self, reason: str) -> None:
        """Take part in a rebalance at the next poll."""
        if not self.rejoin_needed:
            log.info("group %s: rejoining because %s", self._link.group_id, reason)
            self.rejoin_needed = True
            self._reason = reason

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
            if self.is_member:
                self._heartbeats.moved(self._link.node, now)
            # Only now: were it interrupted before, heartbeats would go on to the old one, or nowhere.
            self._seen_finds = self._link.finds
        if self.state is MemberState.STABLE:
            if self._joined_topics is not None and self._joined_topics != self._subscriptions.topics:
                self.request_rejoin("the subscription changed")
            elif self._leader.has_changed():
                self.request_rejoin("partitions were added, or topics came or went")
        return self.rejoin_needed or self._unfinished

    def _take_news(self, news: News) -> None:
        if news.identity != self.identity:
            return
        verdict = news.verdict
        if verdict is HeartbeatVerdict.REJOIN:
            if self.state is MemberState.STABLE:
                self.request_rejoin("the group is rebalancing")
        elif verdict is HeartbeatVerdict.COORDINATOR_UNKNOWN:
            self._link.forget(verdict.value)
        elif verdict is HeartbeatVerdict.LOST:
            self._lose(ErrorCode(news.code).name, keep_member_id=news.code == ErrorCode.ILLEGAL_GENERATION)
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
        else:
            # Told once for each: it may pass (rights are given, a broker recovers), and heartbeats go on.
            self._refused = say(error_for(news.code), f"heartbeat of group {self._link.group_id}")

    def _lose(self, why: str, *, keep_member_id: bool) -> None:
        """Not a member of this generation any more: its partitions are lost, not revoked."""
        # First of all: with this, the next poll joins again, whatever interrupts the rest.
        self.generation_id, self.state, self._prepared, self.rejoin_needed = -1, MemberState.UNJOINED, False, True
        if not keep_member_id:
            self.member_id = ""
        self._reason = why
        if self._subscriptions.uses_group:
            for state in self._subscriptions.states():
                # Others may read them by now: nothing more is handed out, before the listener hears of it.
                state.is_revoked = True
        self._heartbeats.stop()
        log.info("group %s: this consumer lost its membership (%s)", self._link.group_id, why)

    def _fenced(self) -> None:
        self.fatal = FencedInstanceIdError(
            f"another consumer joined group {self._link.group_id} with group.instance.id="
            f"{self._settings.group_instance_id}: give each its own. This consumer can only be closed"
        )
        self._lose("FENCED_INSTANCE_ID", keep_member_id=False)

    # --- the rebalance ----------------------------------------------------------------------------------------------

    def rebalance(self) -> Flow[None]:
        """From "a rejoin is needed" to a stable membership. Raises what will not pass by itself."""
        listener_error: BaseException | None = None
        while self.rejoin_needed or self._unfinished or self.state is not MemberState.STABLE:
            if self.generation_id < 0:
                # They are gone whether the coordinator can be found or not.
                listener_error = (yield from self._give_up_lost()) or listener_error
            yield from self._link.find()
            if not self._prepared:
                listener_error = (yield from self._prepare()) or listener_error
            self.rejoin_needed, self.state = False, MemberState.PREPARING
            self._heartbeats.stop()
            joined = yield from self._join()
            if joined is None:
                self.rejoin_needed = True
                continue
            self.state = MemberState.COMPLETING
            self._begin_heartbeats()
            synced = yield from self._sync(joined)
            if synced is None or self.generation_id != joined.generation_id:
                self.rejoin_needed = True
                continue
            self._link.succeeded()
            # A leader that gave this member nothing may have left it out, and then the coordinator has no bytes for it.
            assignment = decode_assignment(synced) if synced else Assignment(())
            self._unfinished = True
            self.state = MemberState.STABLE
            self._prepared = False
            self._joined = self.identity
            self.rebalances += 1
            listener_error = (yield from self._complete(assignment)) or listener_error
            self._unfinished = False
        if listener_error is not None:
            failed = RebalanceListenerError(f"the rebalance listener raised {listener_error!r}; the rebalance went on")
            raise failed from listener_error

    def _begin_heartbeats(self) -> None:
        if self._link.node is not None:
            self._heartbeats.start(self.identity, self._link.node, self._core.clock.monotonic())
            self.on_heartbeats_begin()

    def _give_up_lost(self) -> Flow[BaseException | None]:
        owned = self._subscriptions.assigned()
        if not owned:
            return None
        error = yield from self._tell("lost", owned)
        self._subscriptions.assign([])
        return error

    def _prepare(self) -> Flow[BaseException | None]:
        """Before joining: commit, and give up what has to be given up."""
        subscriptions = self._subscriptions
        is_lost = self.generation_id < 0
        if self._protocol is RebalanceProtocol.EAGER and not is_lost:
            for state in subscriptions.states():
                # Nothing is handed out any more: what is committed now stays what was read.
                state.is_revoked = True
        if self.before_rejoin is not None and not is_lost:
            yield from self.before_rejoin()
        owned = subscriptions.assigned()
        error: BaseException | None = None
        if self.generation_id < 0:
            error = yield from self._give_up_lost()
        elif self._protocol is RebalanceProtocol.EAGER:
            error = yield from self._tell("revoked", owned)
            subscriptions.assign([])
        else:
            gone = [partition for partition in owned if partition.topic not in subscriptions.topics]
            if gone:
                error = yield from self._tell("revoked", gone)
                subscriptions.assign(partition for partition in owned if partition not in set(gone))
        self._leader.reset()
        self._prepared = True
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

    def _ask(self, request: JoinGroupRequest | SyncGroupRequest) -> Flow[Any]:
        """What the coordinator answers when all members have come; None: start over."""
        timeout_ms = max(self._settings.request_timeout_ms, self._settings.max_poll_interval_ms + _JOIN_EXTRA_MS)
        call = self._link.submit(request, timeout_ms=timeout_ms)
        if call is None:
            return None
        yield call
        if call.error is not None:
            yield from self._unanswered(call)
            return None
        return call.response

    # --- join -------------------------------------------------------------------------------------------------------

    def _join(self) -> Flow[JoinGroupResponse | None]:
        """The answer to JoinGroup; None: start over."""
        self._joined_topics = set(self._subscriptions.topics)
        request = JoinGroupRequest(
            group_id=self._link.group_id,
            session_timeout_ms=self._settings.session_timeout_ms,
            rebalance_timeout_ms=self._settings.max_poll_interval_ms,
            member_id=self.member_id,
            group_instance_id=self._settings.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=self._protocols(),
            reason=self._reason[:_REASON_MAX],
        )
        response: JoinGroupResponse | None = yield from self._ask(request)
        if response is None:
            return None
        if response.error_code:
            yield from self._join_refused(response)
            return None
        if self.fatal is not None:
            raise self.fatal
        self.member_id = response.member_id
        self.generation_id = response.generation_id
        self.protocol_name = response.protocol_name
        if response.protocol_name not in self._assignors:
            raise InconsistentGroupProtocolError(
                f"group {self._link.group_id} chose the strategy {response.protocol_name!r}, which this consumer lacks"
            )
        log.info(
            "group %s: joined generation %s as %s (%s)",
            self._link.group_id,
            self.generation_id,
            self.member_id,
            response.protocol_name,
        )
        return response

    def _protocols(self) -> list[JoinGroupRequestProtocol]:
        topics = sorted(self._subscriptions.topics)
        owned = self._subscriptions.assigned()
        made: list[JoinGroupRequestProtocol] = []
        for name, assignor in self._assignors.items():
            subscription = Subscription(
                topics,
                assignor.subscription_user_data(topics),
                owned,
                self.generation_id if self.generation_id >= 0 else None,
                self._settings.rack or None,
            )
            made.append(JoinGroupRequestProtocol(name=name, metadata=encode_subscription(subscription)))
        return made

    def _unanswered(self, call: Call) -> Flow[None]:
        if not isinstance(call.error, RetriableError):
            assert call.error is not None
            raise call.error
        self._link.forget(str(call.error))
        yield Pause(self._link.next_try())
        return None

    def _join_refused(self, response: JoinGroupResponse) -> Flow[None]:
        code = response.error_code
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            return None
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._lose("UNKNOWN_MEMBER_ID", keep_member_id=False)
            return None
        if code == ErrorCode.FENCED_INSTANCE_ID:
            self._fenced()
            assert self.fatal is not None
            raise self.fatal
        if code in NOT_THE_COORDINATOR:
            self._link.forget(ErrorCode(code).name)
        elif code not in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REBALANCE_IN_PROGRESS):
            self.state = MemberState.UNJOINED
            raise say(error_for(code), f"joining group {self._link.group_id}{_JOIN_HINTS.get(code, '')}")
        yield Pause(self._link.next_try())
        return None

    # --- sync -------------------------------------------------------------------------------------------------------

    def _sync(self, joined: JoinGroupResponse) -> Flow[bytes | None]:
        """This member's assignment, as bytes; None: start over."""
        assignments: list[SyncGroupRequestAssignment] = []
        if joined.leader == joined.member_id and joined.skip_assignment:
            # A static leader came back: the others keep what they have.
            described = self._link.submit(DescribeGroupsRequest(groups=[self._link.group_id]))
            if described is not None:
                yield described
            self._leader.watch(joined, None if described is None else described.response)
        elif joined.leader == joined.member_id:
            assignor = self._assignors[str(joined.protocol_name)]
            encoded = yield from self._leader.assign(assignor, joined)
            assignments = [
                SyncGroupRequestAssignment(member_id=member, assignment=data) for member, data in encoded.items()
            ]
        request = SyncGroupRequest(
            group_id=self._link.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self._settings.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        response: SyncGroupResponse | None = yield from self._ask(request)
        if response is None:
            return None
        code = response.error_code
        if not code:
            return response.assignment
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._reason = "the group began another rebalance before this one was done"
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self._lose(ErrorCode(code).name, keep_member_id=code == ErrorCode.ILLEGAL_GENERATION)
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            self._fenced()
            assert self.fatal is not None
            raise self.fatal
        elif code in NOT_THE_COORDINATOR:
            self._link.forget(ErrorCode(code).name)
        elif code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            raise say(error_for(code), f"synchronising with group {self._link.group_id}")
        return None

    # --- the assignment ---------------------------------------------------------------------------------------------

    def _complete(self, assignment: Assignment) -> Flow[BaseException | None]:
        subscriptions = self._subscriptions
        given = list(dict.fromkeys(assignment.partitions))
        error: BaseException | None = None
        if not all(partition.topic in subscriptions.topics for partition in given):
            if subscriptions.pattern is None:
                self.request_rejoin("the assignment has topics that this consumer does not read any more")
                given = [partition for partition in given if partition.topic in subscriptions.topics]
            else:
                # A pattern: others may have seen new topics first.
                subscriptions.topics |= {partition.topic for partition in given}
                self._joined_topics = set(subscriptions.topics)
        # Only the call is between: what a signal's handler raises beside it is none of the assignor's errors.
        on_assignment, generation_id = self._assignors[str(self.protocol_name)].on_assignment, self.generation_id
        try:
            on_assignment(assignment, generation_id)
        except Exception as raised:
            log.exception("the assignor raised in on_assignment")
            error = raised
        if self._protocol is RebalanceProtocol.COOPERATIVE:
            kept = set(given)
            revoked = [partition for partition in subscriptions.assigned() if partition not in kept]
            if revoked:
                for partition in revoked:
                    subscriptions.state(partition).is_revoked = True
                if self.before_rejoin is not None:
                    yield from self.before_rejoin()
                if not self.is_member:
                    # The commit brought to light that all of it is lost.
                    return error
                error = (yield from self._tell("revoked", revoked)) or error
                self.request_rejoin("partitions were given up, so that others can have them")
        added = subscriptions.assign(given, in_callback=True)
        for topic in subscriptions.topics:
            self._core.add_topic(topic)
        error = (yield from self._tell("assigned", added)) or error
        subscriptions.end_callback()
        return error

    # --- the end ----------------------------------------------------------------------------------------------------

    def give_up_partitions(self) -> Flow[BaseException | None]:
        """Before leaving: tell the listener what goes."""
        owned = self._subscriptions.assigned()
        error: BaseException | None = None
        if owned and self._subscriptions.uses_group:
            stable = self.state is MemberState.STABLE and self.is_member
            error = yield from self._tell("revoked" if stable else "lost", owned)
            self._subscriptions.assign([])
        return error

    def leave(self, reason: str) -> None:
        """Give up the place in the group (a static member keeps its own), without waiting for an answer."""
        request = self._goodbye(reason, even_static=False)
        # Before it is sent: who was interrupted in between is to join again, and not to think itself a member.
        self.forget(reason)
        if request is not None:
            self._link.submit(request)

    def leave_for_good(self, reason: str, *, even_static: bool) -> Flow[None]:
        """Give up the place and see that the coordinator took note, over another connection if this one is gone.

        Otherwise the group would wait for this member until its session is over, and its partitions with it.
        """
        self._heartbeats.stop()
        request = self._goodbye(reason, even_static=even_static)
        while request is not None:
            yield from self._link.find()
            call = self._link.submit(request)
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
        self.forget(reason)

    def _goodbye(self, reason: str, *, even_static: bool) -> LeaveGroupRequest | None:
        """The request that gives up this member's place; None when it has none, or keeps it."""
        instance_id = self._settings.group_instance_id
        if not self.member_id or (instance_id is not None and not even_static):
            return None
        log.info("group %s: leaving because the consumer %s", self._link.group_id, reason)
        return leave_request(self._link.group_id, self.member_id, instance_id, f"the consumer {reason}")

    def forget(self, reason: str) -> None:
        """Start over as somebody new."""
        self.generation_id, self.member_id, self.state = -1, "", MemberState.UNJOINED
        self.rejoin_needed, self._prepared, self._unfinished = True, False, False
        self._reason = f"the consumer {reason} before"
        self._joined_topics = None
        self._heartbeats.stop()
        self._leader.reset()


_JOIN_HINTS: dict[int, str] = {
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: " (no strategy of partition.assignment.strategy is common to all members)",
    ErrorCode.INVALID_SESSION_TIMEOUT: " (the broker's group.min/max.session.timeout.ms bound session.timeout.ms)",
    ErrorCode.GROUP_MAX_SIZE_REACHED: " (group.max.size of the broker)",
}


def rebalance_protocol(assignors: Sequence[Assignor]) -> RebalanceProtocol:
    """The best protocol that all assignors support: with an eager one among them, everybody is eager."""
    common = set(assignors[0].supported_protocols)
    for assignor in assignors[1:]:
        common &= set(assignor.supported_protocols)
    if not common:
        raise ValueError(f"the assignors {', '.join(a.name for a in assignors)} have no rebalance protocol in common")
    return max(common)


def _listener_method(listener: RebalanceListener | None, what: str) -> Callable[[list[TopicPartition]], Any] | None:
    if listener is None:
        return None
    method = getattr(listener, f"on_partitions_{what}", None)
    if method is None and what == "lost":
        method = getattr(listener, "on_partitions_revoked", None)
    return method
