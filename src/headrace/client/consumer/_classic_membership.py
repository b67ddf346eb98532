"""Membership by the classic protocol, without I/O: join, sync, rejoin, leave; what is revoked, and when (SPEC 4.2-4.6).

Eager members give up all partitions before they rejoin; cooperative ones keep reading, and give up only what moves
(KIP-429).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
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
from headrace.client.consumer._classic_heartbeats import ClassicHeartbeats, leave_request
from headrace.client.consumer._coordinator import CoordinatorLink
from headrace.client.consumer._group_leader import GroupLeader
from headrace.client.consumer._heartbeats import GroupIdentity, HeartbeatVerdict, News
from headrace.client.consumer._membership import Membership
from headrace.client.consumer._subscription import Subscriptions
from headrace.client.consumer.config import ConsumerSettings
from headrace.client.consumer.errors import CommitFailedError, RebalanceListenerError, say
from headrace.client.flows import Flow, Pause
from headrace.errors import (
    ErrorCode,
    InconsistentGroupProtocolError,
    RebalanceInProgressError,
    error_for,
)
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from headrace.protocol.messages.leave_group import LeaveGroupRequest
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

log = logging.getLogger("headrace.client.consumer")

_JOIN_EXTRA_MS = 5_000
_REASON_MAX = 255


class MemberState(Enum):
    UNJOINED = "unjoined"
    PREPARING = "preparing the rebalance"
    COMPLETING = "completing the rebalance"
    STABLE = "stable"


class ClassicMembership(Membership):
    """This consumer in a group whose members join together."""

    def __init__(
        self,
        core: ClientCore,
        link: CoordinatorLink,
        subscriptions: Subscriptions,
        settings: ConsumerSettings,
        assignors: Sequence[Assignor],
        heartbeats: ClassicHeartbeats,
        leader: GroupLeader,
    ) -> None:
        super().__init__(link, subscriptions, settings, heartbeats)
        self.state = MemberState.UNJOINED
        self.generation_id = -1
        self.member_id = ""
        self.protocol_name: str | None = None
        self.rejoin_needed = True
        self._core = core
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._protocol = rebalance_protocol(assignors)
        self._beats = heartbeats
        self._leader = leader
        self._prepared = False
        self._unfinished = False
        """Whether an assignment came and was not put into effect, because the rebalance was interrupted there."""
        self._reason = "the consumer joins for the first time"
        self._joined_topics: set[str] | None = None

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
    def is_stable(self) -> bool:
        return self.state is MemberState.STABLE

    @property
    def _may_revoke(self) -> bool:
        return self.is_stable and self.is_member

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
        if not self.rejoin_needed:
            log.info("group %s: rejoining because %s", self._link.group_id, reason)
            self.rejoin_needed = True
            self._reason = reason

    def _has_work(self, now: float) -> bool:
        if self.state is MemberState.STABLE:
            if self._joined_topics is not None and self._joined_topics != self._subscriptions.topics:
                self.request_rejoin("the subscription changed")
            elif self._leader.has_changed():
                self.request_rejoin("partitions were added, or topics came or went")
        return self.rejoin_needed or self._unfinished or self.state is not MemberState.STABLE

    def _hear(self, news: News) -> None:
        if news.verdict is HeartbeatVerdict.LOST:
            self._lose(ErrorCode(news.code).name, keep_member_id=news.code == ErrorCode.ILLEGAL_GENERATION)
        elif self.state is MemberState.STABLE:
            self.request_rejoin("the group is rebalancing")

    def _lose(self, why: str, *, keep_member_id: bool) -> None:
        # First of all: with this, the next poll joins again, whatever interrupts the rest.
        self.generation_id, self.state, self._prepared, self.rejoin_needed = -1, MemberState.UNJOINED, False, True
        if not keep_member_id:
            self.member_id = ""
        self._reason = why
        self._revoke_at_once()
        self._heartbeats.stop()
        log.info("group %s: this consumer lost its membership (%s)", self._link.group_id, why)

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
            self._beats.start(self.identity, self._link.node, self._core.clock.monotonic())
            self.on_heartbeats_begin()

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

    def leave(self, reason: str) -> None:
        request = self._goodbye(reason, even_static=False)
        # Before it is sent: who was interrupted in between is to join again, and not to think itself a member.
        self.forget(reason)
        if request is not None:
            self._link.submit(request)

    def leave_for_good(self, reason: str, *, leave_group: bool | None) -> Flow[None]:
        if leave_group is False:
            return
        self._heartbeats.stop()
        request = self._goodbye(reason, even_static=leave_group is True)
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
