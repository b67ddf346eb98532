"""Who leads and who is in sync: elections on request, changes asked for by leaders, moves to other brokers."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from headrace.cluster.configs import BrokerLayers, topic_value
from headrace.cluster.decision import NO_ERROR, ApiError, Decision
from headrace.cluster.features import has_eligible
from headrace.cluster.image import Image, PartitionImage, TopicImage, changed
from headrace.cluster.partitions import Election, ElectionRules, RulesOf, change, plain_rules
from headrace.cluster.records import (
    LEADER_UNCHANGED,
    NO_LEADER,
    MetadataRecord,
    PartitionChangeRecord,
    ResourceType,
)
from headrace.cluster.topics import replicas_problem
from headrace.error_codes import ErrorCode
from headrace.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from headrace.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from headrace.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

BALANCED_AT_ONCE_MAX = 1000

_ELECTIONS = {0: Election.PREFERRED, 1: Election.UNCLEAN}


# --- elections on request ---------------------------------------------------------------------------------------------


def elect_leaders(
    image: Image, request: ElectLeadersRequest, rules_of: RulesOf = plain_rules
) -> Decision[ElectLeadersResponse]:
    """Elect the preferred replica, or any that is alive; for all partitions when none are named."""
    decision = Decision(ElectLeadersResponse())
    election = _ELECTIONS.get(request.election_type)
    asked: list[tuple[str, Sequence[int]]]
    if election is None:
        decision.response.error_code = ErrorCode.INVALID_REQUEST
    if request.topic_partitions is not None:
        asked = [(topic.topic, topic.partitions) for topic in request.topic_partitions]
    else:
        # Of an election that cannot be, nothing is told of partitions that nobody named.
        topics = () if election is None else image.topics.values()
        asked = [(topic.name, range(len(topic.partitions))) for topic in topics]
    for name, partitions in asked:
        result = ReplicaElectionResult(topic=name)
        decision.response.replica_election_results.append(result)
        for index in partitions:
            if election is None:
                words = f"Unknown election type {request.election_type}: 0 is preferred, 1 is unclean."
                error = ApiError(ErrorCode.INVALID_REQUEST, words)
            else:
                error = _elect(image, name, index, election, rules_of, decision.records)
            # Asked for everything, nobody wants to read about all that is as it should be.
            if request.topic_partitions is None and error.code is ErrorCode.ELECTION_NOT_NEEDED:
                continue
            result.partition_result.append(
                PartitionResult(partition_id=index, error_code=error.code, error_message=error.message)
            )
    return decision


def _elect(
    image: Image, name: str, index: int, election: Election, rules_of: RulesOf, records: list[MetadataRecord]
) -> ApiError:
    topic = image.topics.get(name)
    if topic is None:
        return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    if not 0 <= index < len(topic.partitions):
        return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    partition = topic.partitions[index]
    preferred_leads = election is Election.PREFERRED and partition.leader == partition.replicas[0]
    if preferred_leads or (election is Election.UNCLEAN and partition.leader != NO_LEADER):
        return ApiError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
    record = change(topic.topic_id, index, partition, image.is_active, rules_of(name), election=election)
    if record is None:
        unavailable = (
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
            if election is Election.PREFERRED
            else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        )
        return ApiError(unavailable, unavailable.message)
    records.append(record)
    return NO_ERROR


def balance_leaders(
    image: Image, rules_of: RulesOf = plain_rules, changes_max: int = BALANCED_AT_ONCE_MAX
) -> Decision[None]:
    """Give leadership back to the preferred replicas that are in sync and alive, as many at once as is good."""
    decision: Decision[None] = Decision(None)
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            preferred = partition.replicas[0]
            if partition.leader == preferred or preferred not in partition.isr or not image.is_active(preferred):
                continue
            rules = rules_of(topic.name)
            record = change(topic.topic_id, index, partition, image.is_active, rules, election=Election.PREFERRED)
            if record is not None:
                decision.records.append(record)
            if len(decision.records) >= changes_max:
                return decision
    return decision


def elect_leaderless(image: Image, rules_of: RulesOf) -> list[MetadataRecord]:
    """Leaders for partitions that have none, where the rules now allow one that may lack records."""
    records: list[MetadataRecord] = []
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            if partition.leader == NO_LEADER and rules_of(topic.name).is_unclean_allowed:
                rules = rules_of(topic.name)
                record = change(topic.topic_id, index, partition, image.is_active, rules, election=rules.election)
                if record is not None:
                    records.append(record)
    return records


def follow_minimum(image: Image, before: RulesOf, after: RulesOf) -> list[MetadataRecord]:
    """What another `min.insync.replicas` means for replicas that are eligible by it.

    Where more are needed, every partition epoch moves: a leader that has not heard of it yet, and would commit alone
    what those that leave lack, cannot let them go before it has.
    """
    records: list[MetadataRecord] = []
    for topic in image.topics.values():
        rules, former = after(topic.name), before(topic.name).min_isr
        if rules.has_eligible and rules.min_isr != former:
            records += _counted_anew(image, topic, rules, moves_epochs=rules.min_isr > former)
    return records


def begin_counting(image: Image, rules_of: RulesOf) -> list[MetadataRecord]:
    """Replicas are eligible from now on; by which minimum each leader has committed until now is not known here."""
    records: list[MetadataRecord] = []
    for topic in image.topics.values():
        records += _counted_anew(image, topic, rules_of(topic.name), moves_epochs=True)
    return records


def _counted_anew(
    image: Image, topic: TopicImage, rules: ElectionRules, *, moves_epochs: bool
) -> Iterator[MetadataRecord]:
    for index, partition in enumerate(topic.partitions):
        if partition.leader == NO_LEADER or len(partition.replicas) == 1:
            continue  # nothing is committed, or nobody else could be eligible
        # With fewer needed, its leader goes on without them: they are eligible no longer.
        record = change(topic.topic_id, index, partition, image.is_active, rules, election=rules.election)
        if record is None and moves_epochs:
            record = PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id, isr=list(partition.isr))
        if record is not None:
            yield record


# --- changes asked for by leaders -------------------------------------------------------------------------------------


def alter_partition(
    image: Image, request: AlterPartitionRequest, rules_of: RulesOf = plain_rules
) -> Decision[AlterPartitionResponse]:
    """A leader asks for other in-sync replicas; it is answered with the partition as it is then."""
    decision = Decision(AlterPartitionResponse())
    if image.broker_of_epoch(request.broker_id, request.broker_epoch) is None:
        decision.response.error_code = ErrorCode.STALE_BROKER_EPOCH
        return decision
    for asked in request.topics:
        answer = AlterPartitionResponseTopicData(topic_id=asked.topic_id)
        decision.response.topics.append(answer)
        topic = image.topics_by_id.get(asked.topic_id)
        for partition in asked.partitions:
            if topic is None:
                data = AlterPartitionResponsePartitionData(
                    partition_index=partition.partition_index, error_code=ErrorCode.UNKNOWN_TOPIC_ID
                )
            else:
                data = _alter(image, topic, request.broker_id, partition, rules_of(topic.name), decision.records)
            answer.partitions.append(data)
    return decision


def _alter(
    image: Image,
    topic: TopicImage,
    node_id: int,
    asked: AlterPartitionRequestPartitionData,
    rules: ElectionRules,
    records: list[MetadataRecord],
) -> AlterPartitionResponsePartitionData:
    index = asked.partition_index
    error = _alter_error(image, topic, node_id, asked)
    if error is not ErrorCode.NONE:
        return AlterPartitionResponsePartitionData(partition_index=index, error_code=error)
    partition = topic.partitions[index]
    record = change(
        topic.topic_id,
        index,
        partition,
        image.is_active,
        rules,
        isr=_new_isr(asked),
        recovering=asked.leader_recovery_state == 1,
    )
    if record is None:
        # It is so. The leader wants to be sure that nothing it asked for before is carried out later: that is of an
        # earlier partition epoch then.
        record = PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id, isr=list(partition.isr))
    records.append(record)
    partition = changed(partition, record)
    if record.leader not in (LEADER_UNCHANGED, node_id):
        # The change ended a reassignment, and with it this leader's time.
        return AlterPartitionResponsePartitionData(partition_index=index, error_code=ErrorCode.NEW_LEADER_ELECTED)
    return AlterPartitionResponsePartitionData(
        partition_index=index,
        error_code=ErrorCode.NONE,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=list(partition.isr),
        leader_recovery_state=int(partition.recovering),
        partition_epoch=partition.partition_epoch,
    )


def _new_isr(asked: AlterPartitionRequestPartitionData) -> list[int]:
    return [state.broker_id for state in asked.new_isr_with_epochs] or list(asked.new_isr)


def _alter_error(image: Image, topic: TopicImage, node_id: int, asked: AlterPartitionRequestPartitionData) -> ErrorCode:
    if not 0 <= asked.partition_index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    partition = topic.partitions[asked.partition_index]
    if asked.leader_epoch > partition.leader_epoch or asked.partition_epoch > partition.partition_epoch:
        # The leader knows of something newer, so this is no longer the controller.
        return ErrorCode.NOT_CONTROLLER
    if asked.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if node_id != partition.leader:
        return ErrorCode.INVALID_REQUEST
    if asked.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    new_isr = _new_isr(asked)
    is_subset = set(new_isr) <= set(partition.replicas) and len(set(new_isr)) == len(new_isr)
    recovering = asked.leader_recovery_state == 1
    if not is_subset or node_id not in new_isr or (recovering and (len(new_isr) > 1 or not partition.recovering)):
        return ErrorCode.INVALID_REQUEST
    epochs = {state.broker_id: state.broker_epoch for state in asked.new_isr_with_epochs}
    for member in new_isr:
        broker = image.brokers.get(member)
        if broker is None or not broker.is_active or epochs.get(member, -1) not in (-1, broker.epoch):
            return ErrorCode.INELIGIBLE_REPLICA
        if partition.is_lost_at(member):
            return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


# --- moves to other brokers -------------------------------------------------------------------------------------------


def alter_reassignments(
    image: Image, request: AlterPartitionReassignmentsRequest, rules_of: RulesOf
) -> Decision[AlterPartitionReassignmentsResponse]:
    decision = Decision(
        AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change or not request.topics,
            error_message=None,
        )
    )
    for topic in request.topics:
        answer = ReassignableTopicResponse(name=topic.name)
        decision.response.responses.append(answer)
        for target in topic.partitions:
            record, error = _reassign(image, topic.name, target, request, rules_of)
            if record is not None:
                decision.records.append(record)
            answer.partitions.append(
                ReassignablePartitionResponse(
                    partition_index=target.partition_index, error_code=error.code, error_message=error.message
                )
            )
    return decision


def _reassign(
    image: Image,
    name: str,
    target: ReassignablePartition,
    request: AlterPartitionReassignmentsRequest,
    rules_of: RulesOf,
) -> tuple[PartitionChangeRecord | None, ApiError]:
    topic = image.topics.get(name)
    if topic is None:
        return None, ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if not 0 <= target.partition_index < len(topic.partitions):
        words = f"Unable to find partition {name}:{target.partition_index}."
        return None, ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, words)
    partition = topic.partitions[target.partition_index]
    if target.replicas is None:
        return _call_off(image, topic, target.partition_index, rules_of(name))
    problem = replicas_problem(image, target.replicas, None)
    if problem is not None:
        return None, ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
    # Of a move that is under way, what it leads to: that may be another factor already.
    factor = len(set(partition.replicas) - set(partition.removing))
    if not request.allow_replication_factor_change and len(target.replicas) != factor:
        words = f"The move would change the replication factor from {factor} to {len(target.replicas)}."
        return None, ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, words)
    wanted, present = set(target.replicas), set(partition.replicas)
    removing = sorted(present - wanted)
    record = change(
        topic.topic_id,
        target.partition_index,
        partition,
        image.is_active,
        rules_of(name),
        replicas=[*target.replicas, *removing],
        # Where nothing more is to come, what an earlier move is waiting for: but for what is not wanted any more.
        adding=sorted(wanted - present) or [node_id for node_id in partition.adding if node_id in wanted],
        removing=removing,
    )
    return record, NO_ERROR


def _settled_replicas(partition: PartitionImage) -> list[int]:
    """The replicas that a partition had before the move that is under way."""
    return [node_id for node_id in partition.replicas if node_id not in partition.adding]


def _call_off(
    image: Image, topic: TopicImage, index: int, rules: ElectionRules
) -> tuple[PartitionChangeRecord | None, ApiError]:
    partition = topic.partitions[index]
    if not partition.is_reassigning:
        code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        return None, ApiError(code, code.message)
    replicas = _settled_replicas(partition)
    isr = [node_id for node_id in partition.isr if node_id in replicas]
    if not isr:
        if not rules.is_unclean_allowed:
            words = f"The move of {topic.name}:{index} cannot be called off: none of its old replicas is in sync."
            return None, ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, words)
        isr = replicas[:1]
    record = change(
        topic.topic_id,
        index,
        partition,
        image.is_active,
        rules,
        election=rules.election,
        isr=isr,
        replicas=replicas,
        adding=(),
        removing=(),
    )
    return record, NO_ERROR


def list_reassignments(image: Image, request: ListPartitionReassignmentsRequest) -> ListPartitionReassignmentsResponse:
    response = ListPartitionReassignmentsResponse(error_message=None)
    asked: list[tuple[TopicImage, Sequence[int]]]
    if request.topics is None:
        asked = [(topic, range(len(topic.partitions))) for topic in image.topics.values()]
    else:
        asked = [(image.topics[t.name], t.partition_indexes) for t in request.topics if t.name in image.topics]
    for topic, indexes in asked:
        ongoing = [
            OngoingPartitionReassignment(
                partition_index=index,
                replicas=list(topic.partitions[index].replicas),
                adding_replicas=list(topic.partitions[index].adding),
                removing_replicas=list(topic.partitions[index].removing),
            )
            for index in indexes
            if 0 <= index < len(topic.partitions) and topic.partitions[index].is_reassigning
        ]
        if ongoing:
            response.topics.append(OngoingTopicReassignment(name=topic.name, partitions=ongoing))
    return response


def rules_of(image: Image, layers: BrokerLayers) -> RulesOf:
    """What counts for each topic. Asked once per partition, so only these keys are looked up, and once per topic."""
    is_eligible_known = has_eligible(image)

    @functools.cache
    def find(topic: str) -> ElectionRules:
        overrides = image.config(ResourceType.TOPIC, topic)
        min_isr = topic_value("min.insync.replicas", layers, overrides)
        assert isinstance(min_isr, int)
        return ElectionRules(
            min_isr,
            is_eligible_known,
            is_unclean_allowed=topic_value("unclean.leader.election.enable", layers, overrides) is True,
        )

    return find
