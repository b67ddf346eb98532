"""StreamsGroupHeartbeat: members that join with a topology, stay, give up tasks, and leave."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from headrace.coordination import Caller, Now, is_storable
from headrace.errors import ErrorCode
from headrace.groups.epochs.finding import check_epoch, existing_group, existing_member, served_group
from headrace.groups.epochs.member import LEAVING_EPOCH, STATIC_LEAVING_EPOCH
from headrace.groups.epochs.refusals import RefusedError
from headrace.groups.epochs.steps import GroupStep
from headrace.groups.group import GroupKind
from headrace.groups.outcome import Outcome
from headrace.groups.settings import number
from headrace.groups.streams import records
from headrace.groups.streams.endpoints import partitions_by_endpoint
from headrace.groups.streams.group import StreamsGroup, StreamsMember
from headrace.groups.streams.moving import Begin, StreamsMoves
from headrace.groups.streams.tasks import MemberTasks, TargetTasks, task_ids, told_tasks
from headrace.groups.streams.topology import ConfiguredTopology, StreamsTopology, TopologyStatus, invalid_topology
from headrace.protocol.messages.streams_group_heartbeat import (
    Status,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    TaskIds,
    Topology,
)

ANSWERS_MISSED = 2  # heartbeat intervals after which a member that has other tasks is told again
NOT_TOLD = -1  # a rebalance time-out that has not changed


@dataclass(slots=True)
class _Heartbeat:
    """A heartbeat on its way through the steps that answer it."""

    caller: Caller
    member: StreamsMember
    owned: TargetTasks | None
    joins: bool
    is_first: bool  # whether the group is new
    endpoint_epoch: int
    number: int  # of the member's
    statuses: list[Status] = field(default_factory=list)

    def add(self, status: TopologyStatus, detail: str) -> None:
        self.statuses.append(Status(status_code=status, status_detail=detail))


class StreamsHeartbeats:
    def __init__(self, moves: StreamsMoves) -> None:
        self._moves = moves
        self._shards = moves.shards

    def heartbeat(self, out: Outcome, caller: Caller, request: StreamsGroupHeartbeatRequest, at: Now) -> None:
        try:
            _check_supported(request)
            _check(caller, request)
            if request.member_epoch < 0:
                self._leave(out, caller, request, at)
            else:
                self._stay(out, caller, request, at)
        except RefusedError as refused:
            refuse(out, caller, refused.error, refused.message)

    # --- join and stay ------------------------------------------------------------------------------------------------

    def _stay(self, out: Outcome, caller: Caller, request: StreamsGroupHeartbeatRequest, at: Now) -> None:
        joins = request.member_epoch == 0
        begin: Begin | None = None
        if joins:
            group, begin = self._moves.group_to_join(request.group_id)
            if len(group.members) >= self._moves.config.max_size:
                raise RefusedError(
                    ErrorCode.GROUP_MAX_SIZE_REACHED,
                    f"The streams group has reached its maximum capacity of {self._moves.config.max_size} members.",
                )
        else:
            group = self._known_group(request.group_id)
        owned = _owned(request)
        member = group.members.get(request.member_id) if joins else existing_member(group, request.member_id)
        if member is not None and not joins:
            assigned = member.assigned
            check_epoch(group, member, request.member_epoch, lambda: owned is not None and assigned.holds_all(owned))
        topology = _topology(group, request.topology)
        configured = self._moves.configured(group, topology)
        if configured.is_ready:
            _check_tasks(configured, request)
        # Nothing is refused from here on.
        step = GroupStep(self._shards, out, group, at)
        if begin is not None:
            begin(step)
        was_empty = not group.members
        if member is None:
            member = StreamsMember(request.member_id)
            group.put_member(member)
            step.note(f"member {member.member_id} joins")
        member.asked += 1
        is_first, endpoint_epoch = begin is not None, request.endpoint_information_epoch
        beat = _Heartbeat(caller, member, owned, joins, is_first, endpoint_epoch, member.asked)
        is_other = _update(step, beat, request)
        if group.topology is None:
            group.topology = topology
            step.put(records.topology(group.group_id, topology))
            is_other = True
        if member.topology_epoch < topology.epoch:
            beat.add(
                TopologyStatus.STALE_TOPOLOGY,
                f"The member's topology epoch {member.topology_epoch} is behind the group's topology epoch "
                f"{topology.epoch}.",
            )
        self._moves.bump_if(step, is_other, configured)
        if was_empty:
            self._moves.begin_delay(step)
        waits = self._moves.waits_for(group, at)
        if waits is not None:
            beat.add(TopologyStatus.ASSIGNMENT_DELAYED, waits)
        if request.shutdown_application:
            group.shutdown_asked_by = member.member_id
        self._moves.refresh(step, partial(self._answer, beat), partial(_refuse_waiting, caller))

    def _known_group(self, group_id: str) -> StreamsGroup:
        if served_group(self._shards, group_id) is None:
            raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, f"Streams group {group_id} not found.")
        return existing_group(self._shards, group_id, StreamsGroup, GroupKind.STREAMS)

    def _answer(self, beat: _Heartbeat, step: GroupStep[StreamsGroup]) -> None:
        """The target is what it is: bring the member nearer to it, and say what it has now."""
        group, member = step.group, beat.member
        if group.members.get(member.member_id) is not member:
            message = f"Member {member.member_id} is not a member of group {group.group_id}."
            refuse(step.out, beat.caller, ErrorCode.UNKNOWN_MEMBER_ID, message)
            return
        if member.asked != beat.number:
            message = "The member has asked again meanwhile."
            refuse(step.out, beat.caller, ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
            return
        before = member.assigned
        try:
            self._moves.reconcile(step, member, beat.owned)
        except RefusedError as refused:
            refuse(step.out, beat.caller, refused.error, refused.message)
            return
        group.heard_from(step.out, member, step.at)
        response = StreamsGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=number(self._moves.settings, group.group_id, "streams.heartbeat.interval.ms"),
        )
        has_changed = beat.joins or not before.is_same_as(member.assigned)
        if has_changed or self._missed_an_answer(step, beat):
            member.answered_ms = step.at.monotonic_ms
            _tell_tasks(response, member.assigned)
            if member.endpoint is not None and not beat.is_first:
                group.endpoint_epoch += 1
        is_first_endpoint = beat.is_first and member.endpoint is not None
        if is_first_endpoint or beat.endpoint_epoch != group.endpoint_epoch:
            response.partitions_by_user_endpoint = partitions_by_endpoint(group, member)
        response.endpoint_information_epoch = group.endpoint_epoch
        response.status = self._statuses(group, beat)
        step.out.reply(beat.caller, response)

    def _missed_an_answer(self, step: GroupStep[StreamsGroup], beat: _Heartbeat) -> bool:
        """Whether the member goes on with other tasks than it was given: the answer that gave them was lost.

        Kafka leaves such a member alone, which runs too little, or is put out once it had to give something up.
        """
        member = beat.member
        if beat.joins:
            member.owned = None
        elif beat.owned is not None:
            member.owned = beat.owned
        if member.owned is None or member.assigned.is_owned_as(member.owned):
            return False
        interval_ms = number(self._moves.settings, step.group.group_id, "streams.heartbeat.interval.ms")
        return step.at.monotonic_ms - member.answered_ms > ANSWERS_MISSED * interval_ms

    @staticmethod
    def _statuses(group: StreamsGroup, beat: _Heartbeat) -> list[Status]:
        problem = None if group.configured is None else group.configured.problem
        if problem is not None:
            beat.add(problem.status, problem.detail)
        if group.shutdown_asked_by is not None:
            beat.add(
                TopologyStatus.SHUTDOWN_APPLICATION,
                f"Streams group member {group.shutdown_asked_by} encountered a fatal error and requested a shutdown "
                "for the entire application.",
            )
        return beat.statuses

    # --- leave --------------------------------------------------------------------------------------------------------

    def _leave(self, out: Outcome, caller: Caller, request: StreamsGroupHeartbeatRequest, at: Now) -> None:
        group = existing_group(self._shards, request.group_id, StreamsGroup, GroupKind.STREAMS)
        if request.shutdown_application:
            group.shutdown_asked_by = request.member_id
        member = existing_member(group, request.member_id)
        response = StreamsGroupHeartbeatResponse(
            member_id=request.member_id, member_epoch=request.member_epoch, status=[]
        )
        self._moves.drop(out, group, [member], at, "left", reply=(caller, response))


def refuse(out: Outcome, caller: Caller, error: ErrorCode, message: str) -> None:
    out.reply(caller, StreamsGroupHeartbeatResponse(error_code=error, error_message=message, status=[]))


def _refuse_waiting(caller: Caller, out: Outcome, error: ErrorCode) -> None:
    refuse(out, caller, error, error.message)


def _tell_tasks(response: StreamsGroupHeartbeatResponse, tasks: MemberTasks) -> None:
    response.active_tasks = task_ids(tasks.active, TaskIds)
    response.standby_tasks = task_ids(tasks.standby, TaskIds)
    response.warmup_tasks = task_ids(tasks.warmup, TaskIds)


def _owned(request: StreamsGroupHeartbeatRequest) -> TargetTasks | None:
    if request.active_tasks is None:
        return None
    return TargetTasks(
        told_tasks(request.active_tasks), told_tasks(request.standby_tasks), told_tasks(request.warmup_tasks)
    )


def _topology(group: StreamsGroup, told: Topology | None) -> StreamsTopology:
    """The group's: that of the first member. Who brings an older one is told so; another one is refused."""
    known = group.topology
    if told is None:
        if known is None:
            raise RefusedError(ErrorCode.INVALID_REQUEST, "Topology must be non-null when (re-)joining.")
        return known
    brought = StreamsTopology.of_request(told)
    if known is None:
        return brought
    if brought.epoch >= known.epoch and brought != known:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet.")
    return known


def _update(step: GroupStep[StreamsGroup], beat: _Heartbeat, request: StreamsGroupHeartbeatRequest) -> bool:
    """Take over what the member tells of itself; whether that begins a new epoch."""
    member, caller = beat.member, beat.caller
    before = member.told
    if request.rack_id is not None:
        member.rack_id = request.rack_id
    if request.rebalance_timeout_ms != NOT_TOLD:
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
    if request.topology is not None:
        member.topology_epoch = request.topology.epoch
    if request.process_id is not None:
        member.process_id = request.process_id
    if request.user_endpoint is not None:
        member.endpoint = request.user_endpoint.host, request.user_endpoint.port
    if request.client_tags is not None:
        member.client_tags = {tag.key: tag.value for tag in request.client_tags}
    member.client_id, member.client_host = caller.client_id or "", caller.client_host
    if before == member.told:
        return False
    step.put(step.group.member_record(member))
    return True


# --- checks -----------------------------------------------------------------------------------------------------------


def _check_supported(request: StreamsGroupHeartbeatRequest) -> None:
    if request.instance_id is not None:
        raise _invalid("Static membership is not yet supported.")
    if request.task_offsets is not None:
        raise _invalid("TaskOffsets are not supported yet.")
    if request.task_end_offsets is not None:
        raise _invalid("TaskEndOffsets are not supported yet.")
    if request.warmup_tasks:
        raise _invalid("WarmupTasks are not supported yet.")
    if request.topology is not None and any(one.source_topic_regex for one in request.topology.subtopologies):
        raise _invalid("Regular expressions for source topics are not supported yet.")


def _check(caller: Caller, request: StreamsGroupHeartbeatRequest) -> None:
    """What can be wrong with a request, whoever sends it; in Kafka's order."""
    epoch = request.member_epoch
    for text, name in ((request.member_id, "MemberId"), (request.group_id, "GroupId"), (request.rack_id, "RackId")):
        if text is not None and not text.strip():
            raise _invalid(f"{name} can't be empty.")
    if epoch == 0:
        if request.rebalance_timeout_ms == NOT_TOLD:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        for tasks, name in ((request.active_tasks, "ActiveTasks"), (request.standby_tasks, "StandbyTasks")):
            if tasks is None or tasks:
                raise _invalid(f"{name} must be empty when (re-)joining.")
        if request.warmup_tasks is None:
            raise _invalid("WarmupTasks must be empty when (re-)joining.")
        if request.topology is None:
            raise _invalid("Topology must be non-null when (re-)joining.")
        _check_topology(request.topology)
    elif epoch == STATIC_LEAVING_EPOCH:
        raise _invalid("InstanceId can't be null.")
    elif epoch < LEAVING_EPOCH:
        raise _invalid(f"MemberEpoch is {epoch}, but must be greater than or equal to -2.")
    told = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    if any(tasks is not None for tasks in told) and any(tasks is None for tasks in told):
        raise _invalid("If one task-type is non-null, all must be non-null.")
    if epoch != 0 and request.topology is not None:
        raise _invalid("Topology can only be provided when (re-)joining.")
    if not all(map(is_storable, _names(caller, request))):
        raise _invalid("A name in the request is longer than a record can hold, which is 32767 bytes.")


def _names(caller: Caller, request: StreamsGroupHeartbeatRequest) -> Iterable[str | None]:
    yield from (request.member_id, request.rack_id, request.process_id, caller.client_id)
    if request.user_endpoint is not None:
        yield request.user_endpoint.host
    for tag in request.client_tags or ():
        yield from (tag.key, tag.value)
    for one in () if request.topology is None else request.topology.subtopologies:
        yield from (one.subtopology_id, *one.source_topics, *one.repartition_sink_topics)
        for topic in (*one.state_changelog_topics, *one.repartition_source_topics):
            yield topic.name
            for config in topic.topic_configs:
                yield from (config.key, config.value)


def _check_topology(topology: Topology) -> None:
    for one in topology.subtopologies:
        for topic in one.state_changelog_topics:
            if topic.partitions != 0:
                raise invalid_topology(
                    f"Changelog topic {topic.name} must have an undefined partition count, but it is set to "
                    f"{topic.partitions}."
                )


def _check_tasks(configured: ConfiguredTopology, request: StreamsGroupHeartbeatRequest) -> None:
    """Whoever owns a task that is none has another topology than the group."""
    subtopologies = configured.subtopologies or {}
    for tasks in (request.active_tasks, request.standby_tasks, request.warmup_tasks):
        for one in tasks or ():
            known = subtopologies.get(one.subtopology_id)
            if known is None:
                raise _invalid(f"Subtopology {one.subtopology_id} does not exist in the topology.")
            for found in one.partitions:
                if not 0 <= found < known.tasks:
                    raise _invalid(
                        f"Task {found} for subtopology {one.subtopology_id} is invalid. Number of tasks for this "
                        f"subtopology: {known.tasks}"
                    )


def _invalid(message: str) -> RefusedError:
    return RefusedError(ErrorCode.INVALID_REQUEST, message)
