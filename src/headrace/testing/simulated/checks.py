"""What must be true when all faults are over and everything is at rest: nothing lost, doubled, torn or out of order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.partitions.partition import Partition
from headrace.cluster.image import TopicImage
from headrace.cluster.topic_names import TRANSACTION_STATE
from headrace.parallel.retries import attempts_of
from headrace.records import Batch, read_control, read_records, split
from headrace.testing.simulated.cluster import SimulatedCluster
from headrace.testing.simulated.faults import RIVALS
from headrace.testing.simulated.handled import not_handled, settle
from headrace.testing.simulated.history import (
    DELETION,
    NUMBER,
    BrokenError,
    CommitCall,
    Handled,
    History,
    Register,
    TransactionEnd,
    tombstone_of,
)
from headrace.testing.simulated.plans import TRIMMED, WRITING
from headrace.testing.simulated.times import check_times
from headrace.testing.simulated.topic_configs import check_configs
from headrace.topics import TopicPartition

_READ_BYTES = 1 << 20
_COMMIT_MARKER = 1
_NO_PRODUCER = -1


@dataclass(slots=True)
class Contents:
    """The records of a partition: value and producer by offset; which of them a marker committed or aborted."""

    end: int = 0
    rows: dict[int, tuple[str, int]] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    #: Of transactions that were not ended.
    undecided: set[int] = field(default_factory=set)
    #: Of those that parallel consumers sent on: how many rounds through the retry topic they have made.
    rounds: dict[int, int] = field(default_factory=dict)

    def visible(self, committed_only: bool) -> list[int]:
        """The offsets that a reader is to be given."""
        return [offset for offset in self.rows if not committed_only or offset not in self.aborted]


# --- at rest ----------------------------------------------------------------------------------------------------------


def unrest(cluster: SimulatedCluster) -> str | None:
    """What is not as it should be long after the last fault; None when all is well."""
    alive = cluster.alive
    if len(alive) < len(cluster.brokers):
        return f"only brokers {[broker.node_id for broker in alive]} run"
    if cluster.controller_id is None:
        return "nobody decides"
    offsets = {broker.image.offset for broker in alive}
    if len(offsets) > 1:
        return f"brokers know the metadata up to {sorted(offsets)}"
    image = alive[0].image
    fenced = [node_id for node_id in cluster.brokers if not image.is_active(node_id)]
    if fenced:
        return f"brokers {fenced} are fenced"
    for broker in alive:
        for topic in broker.image.topics.values():
            for index, state in enumerate(topic.partitions):
                name = f"{topic.name}-{index}"
                if set(state.isr) != set(state.replicas) or state.leader < 0 or state.is_reassigning:
                    return f"{name}: replicas {state.replicas}, in sync {state.isr}, leader {state.leader}"
                if broker.node_id in state.replicas:
                    found = _replica_unrest(cluster, broker, topic, index, state.leader)
                    if found is not None:
                        return f"{name} on broker {broker.node_id}: {found}"
        orphans = [f"{name}-{index}" for name, index in broker.replicas.partitions if name not in image.topics]
        if orphans:
            return f"broker {broker.node_id} has logs of topics that are not there: {orphans}"
    return None


def _replica_unrest(
    cluster: SimulatedCluster, broker: Broker, topic: TopicImage, index: int, leader: int
) -> str | None:
    partition = broker.replicas.partitions.get((topic.name, index))
    if partition is None:
        return "it is not there"
    log = partition.log
    if partition.is_offline:
        return "it is offline"
    if log.topic_id != topic.topic_id:
        return "it is of a topic of that name that was deleted"
    leading = cluster.brokers[leader].broker
    assert leading is not None
    ahead = leading.replicas.partitions.get((topic.name, index))
    if ahead is None or log.end_offset != ahead.log.end_offset or log.high_watermark != log.end_offset:
        return f"it ends at {log.end_offset} with watermark {log.high_watermark}"
    if log.last_stable_offset != log.end_offset:
        return f"a transaction is open since {log.last_stable_offset}"
    if topic.name == TRANSACTION_STATE and broker.node_id == leader:
        found = broker.transactions.coordinator.snapshots(index).values()
        if not all(snapshot.state.is_complete or not snapshot.partitions for snapshot in found):
            return "a transaction is not ended"
    return None


# --- what is in the logs ----------------------------------------------------------------------------------------------


def raw_log(partition: Partition) -> bytes:
    """Every byte of a log."""
    log, parts, offset = partition.log, [], partition.log.start_offset
    while offset < log.end_offset:
        found = log.locate(offset, _READ_BYTES, limit=log.end_offset, at_least_one=True)
        data = found.file.read(found.position, found.length)
        parts.append(data)
        for batch in split(data):
            offset = batch.next_offset
    return b"".join(parts)


def contents(data: bytes) -> Contents:
    """The records of a log and what became of them."""
    found = Contents()
    pending: dict[int, list[int]] = {}
    for batch in split(data):
        found.end = batch.next_offset
        for record in read_records(batch):
            if batch.is_control:
                ended = pending.pop(batch.producer_id, [])
                if read_control(record).control_type != _COMMIT_MARKER:
                    found.aborted.update(ended)
                continue
            found.rows[record.offset] = _text_of(record), batch.producer_id
            if record.headers:
                found.rounds[record.offset] = attempts_of(record)
            if batch.is_transactional:
                pending.setdefault(batch.producer_id, []).append(record.offset)
    found.undecided.update(*pending.values())
    return found


def _text_of(record: Any) -> str:
    """The value; of a record that deletes its key, what stands for it."""
    if record.value is None and record.key is not None:
        number = next((data for name, data in record.headers if name == NUMBER), b"")
        return tombstone_of(bytes(record.key).decode("utf-8", "replace"), bytes(number or b"").decode())
    return bytes(record.value or b"").decode("utf-8", "replace")


def all_contents(cluster: SimulatedCluster, history: History) -> dict[TopicPartition, Contents]:
    """What is in the topics that were written to; raises where replicas differ."""
    image = cluster.alive[0].image
    found: dict[TopicPartition, Contents] = {}
    for topic in image.topics.values():
        for index, state in enumerate(topic.partitions):
            partition = TopicPartition(topic.name, index)
            logs = {
                broker.node_id: raw_log(broker.replicas.partitions[topic.name, index])
                for broker in cluster.alive
                if broker.node_id in state.replicas
            }
            if topic.name in TRIMMED:
                starts = {
                    broker.node_id: broker.replicas.partitions[topic.name, index].log.start_offset
                    for broker in cluster.alive
                    if broker.node_id in logs
                }
                check_trimmed(history, partition, {node: contents(data) for node, data in logs.items()}, starts)
                continue
            if len(set(logs.values())) > 1:
                raise BrokenError(f"{partition}: the replicas differ {where_they_differ(logs)}")
            if topic.name in history.sent:
                found[partition] = contents(logs[state.leader])
                for broker in cluster.alive:
                    if broker.node_id in logs:
                        log = broker.replicas.partitions[topic.name, index].log
                        check_times(f"{partition} on broker {broker.node_id}", log, logs[broker.node_id])
    return found


def settle_doubts(cluster: SimulatedCluster, handled: Handled) -> None:
    """Look up what became of letters whose transaction has an outcome that no parallel consumer was told."""
    if handled.doubtful:
        held = {}
        for topic in {letter.topic for letter in handled.doubtful}:
            for index, state in enumerate(cluster.alive[0].image.topics[topic].partitions):
                leading = None if state.leader < 0 else cluster.brokers[state.leader].broker
                partition = None if leading is None else leading.replicas.partitions.get((topic, index))
                if partition is not None:
                    held[TopicPartition(topic, index)] = contents(raw_log(partition))
        settle(handled, held)


def check_trimmed(
    history: History, partition: TopicPartition, found: dict[int, Contents], starts: dict[int, int]
) -> None:
    """A partition of which brokers remove records, each in its own time: its beginning, or what a key had before."""
    begin = max(starts.values())
    is_compacted = TRIMMED[partition.topic]["cleanup.policy"] == "compact"
    known = {offset: value for offset, value in history.acknowledged.get(partition, {}).items() if offset >= begin}
    kept: dict[int, dict[int, str]] = {}
    # Where it was said at some time that what deletes a key need not stay, it may be gone on some brokers.
    may_go = "delete.retention.ms" in history.configured_names(partition.topic)
    for node_id, held in found.items():
        rows = {offset: row[0] for offset, row in held.rows.items() if offset >= begin}
        for offset, value in rows.items():
            if value not in history.sent[partition.topic]:
                raise BrokenError(f"{partition}: {value[:20]!r} at {offset} of broker {node_id} was never sent")
        kept[node_id] = _latest(rows) if is_compacted else rows
        newest = {value.split(":")[0]: value for value in kept[node_id].values()}
        for offset, value in known.items():
            key = value.split(":")[0]
            is_replaced = is_compacted and newest.get(key, "") > value
            if may_go and value.endswith(DELETION) and key not in newest:
                continue
            if not is_replaced and kept[node_id].get(offset) != value:
                raise BrokenError(f"{partition}: {value[:20]!r} was acknowledged at {offset} and is not on {node_id}")
    if may_go:
        kept = {node_id: _without_deletions(rows) for node_id, rows in kept.items()}
    if any(rows != kept[min(kept)] for rows in kept.values()):
        raise BrokenError(f"{partition}: brokers {sorted(kept)} differ in what they keep")


def _latest(rows: dict[int, str]) -> dict[int, str]:
    """The newest record of each key."""
    newest = {rows[offset].split(":")[0]: offset for offset in sorted(rows)}
    return {offset: rows[offset] for offset in sorted(newest.values())}


def _without_deletions(rows: dict[int, str]) -> dict[int, str]:
    return {offset: value for offset, value in rows.items() if not value.endswith(DELETION)}


def not_given(history: History, found: dict[TopicPartition, Contents], topics: Iterable[str]) -> str | None:
    """A record that some reader has still to be given; None when all have all."""
    for (reader, partition), read in history.reads.items():
        given = {offset for offset, _ in read.rows}
        for offset in found.get(partition, Contents()).visible(read.is_committed_only):
            if offset not in given:
                return f"{partition}: {reader} was not given offset {offset}"
    for partition, held in found.items():
        for group in history.groups if partition.topic in topics else ():
            processed = history.processed.get((group, partition), {})
            for offset in held.visible(True):
                if offset not in processed:
                    return f"{partition}: offset {offset} was never given to a member of {group}"
    return not_handled(history.handled, found)


def check_committed(history: History, group: str, told: dict[TopicPartition, int]) -> None:
    """What a group has committed in the end is what one of its members asked for, and no less than any was told."""
    for (name, partition), commits in history.group_commits.items():
        if name != group:
            continue
        known, found = history.known_commit(group, partition), told.get(partition)
        if found is None and known > 0:
            raise BrokenError(f"{partition}: {group} had committed {known}, and in the end nothing")
        if found is not None and (found < known or found not in {commit.offset for commit in commits}):
            raise BrokenError(f"{partition}: {group} had committed {known}, and in the end {found}")


def check_all(
    cluster: SimulatedCluster,
    history: History,
    found: dict[TopicPartition, Contents],
    kept_offsets: dict[str, int],
) -> None:
    """Everything that can be said at the end but what parallel consumers did. `kept_offsets` are committed offsets by
    group, as brokers tell them."""
    image = cluster.alive[0].image
    for partition, known in history.acknowledged.items():
        if partition.topic in TRIMMED:
            continue
        _check_acknowledged(partition, known, found.get(partition, Contents()))
    for partition, held in found.items():
        _check_values(history, partition, held)
    _check_producer_ids(found)
    _check_transactions(history, found, kept_offsets)
    for (reader, partition), read in history.reads.items():
        _check_read(reader, partition, read.rows, read.is_committed_only, found.get(partition, Contents()))
    for (group, partition), commits in history.group_commits.items():
        _check_group(history, group, partition, commits, found.get(partition, Contents()))
    for (group, partition), register in history.registers.items():
        check_register(f"offset of {group} for {partition}", register)
    check_configs(history, cluster.alive)
    for name, count in history.partitions.items():
        if len(image.topics[name].partitions) < count:
            raise BrokenError(f"topic {name} has {len(image.topics[name].partitions)} partitions, of {count}")
    for name, is_there in history.scratch.items():
        if is_there is not None and (name in image.topics) != is_there:
            raise BrokenError(f"topic {name} should {'' if is_there else 'not '}be there")


def where_they_differ(logs: dict[int, bytes]) -> str:
    """The first batch that is not the same on all brokers: where, and what each has there."""
    batches = {node_id: list(split(data)) for node_id, data in logs.items()}
    for number in range(max(map(len, batches.values()))):
        there = {node_id: found[number] if number < len(found) else None for node_id, found in batches.items()}
        if len({None if batch is None else bytes(batch.buffer) for batch in there.values()}) > 1:
            offset = min(batch.base_offset for batch in there.values() if batch is not None)
            seen = "; ".join(f"broker {node_id} has {_told(batch)}" for node_id, batch in sorted(there.items()))
            return f"from offset {offset} on: {seen}"
    return "only behind their last whole batches"


def _told(batch: Batch | None) -> str:
    """One batch, in words."""
    if batch is None:
        return "nothing there"
    header = batch.header()
    last = "" if header.next_offset == header.base_offset + 1 else f" to {header.next_offset - 1}"
    of = f"{header.base_offset}{last} of leader epoch {header.leader_epoch}"
    if header.producer_id >= 0:
        of += f", producer {header.producer_id} epoch {header.producer_epoch}"
    if header.is_control:
        return f"{of}: a marker"
    return f"{of}: {[_text_of(record)[:20] for record in read_records(batch)][:3]}"


def _check_acknowledged(partition: TopicPartition, known: dict[int, str], found: Contents) -> None:
    for offset, value in known.items():
        row = found.rows.get(offset)
        if row is None:
            raise BrokenError(
                f"{partition}: {value!r} was acknowledged at {offset} and is lost; the log is {found.end}"
            )
        if row[0] != value:
            raise BrokenError(f"{partition}: {value!r} was acknowledged at {offset}, where {row[0]!r} is")


def _check_values(history: History, partition: TopicPartition, found: Contents) -> None:
    sent = history.sent[partition.topic]
    seen: dict[str, int] = {}
    latest: dict[str, str] = {}
    for offset, (value, _) in found.rows.items():
        if value not in sent:
            raise BrokenError(f"{partition}: {value!r} at {offset} was never sent")
        if partition.topic in history.may_repeat:
            continue
        if value in seen:
            raise BrokenError(f"{partition}: {value!r} is there twice, at {seen[value]} and {offset}")
        seen[value] = offset
        writer = value.split(":")[0]
        if latest.get(writer, "") > value:
            raise BrokenError(f"{partition}: {value!r} at {offset} comes after {latest[writer]!r}")
        latest[writer] = value


def _check_producer_ids(found: dict[TopicPartition, Contents]) -> None:
    owners: dict[int, str] = {}
    for partition, held in found.items():
        for offset, (value, producer_id) in held.rows.items():
            writer = RIVALS if partition.topic == WRITING[RIVALS] else value.split(":")[0]
            if producer_id != _NO_PRODUCER and owners.setdefault(producer_id, writer) != writer:
                raise BrokenError(
                    f"{partition} at {offset}: producer id {producer_id} is {writer}'s and {owners[producer_id]}'s"
                )


def _check_transactions(history: History, found: dict[TopicPartition, Contents], kept_offsets: dict[str, int]) -> None:
    committed = {
        (partition, value)
        for partition, held in found.items()
        for offset, (value, _) in held.rows.items()
        if offset not in held.aborted
    }
    latest: dict[str, int] = {}
    for transaction in history.transactions:
        there = {(partition, value) in committed for partition, value in transaction.values.items()}
        name = f"transaction {transaction.number} of {transaction.writer}"
        if len(there) > 1:
            raise BrokenError(f"{name} has two outcomes: of {transaction.values} only a part is committed")
        is_there = there == {True}
        if transaction.outcome is TransactionEnd.COMMITTED and transaction.values and not is_there:
            raise BrokenError(f"{name} was committed, but {transaction.values} is not there")
        if transaction.outcome is TransactionEnd.ABORTED and is_there:
            raise BrokenError(f"{name} was aborted, but {transaction.values} is there")
        if is_there and transaction.has_offset:
            latest[transaction.writer] = transaction.number
    for writer, number in latest.items():
        if kept_offsets.get(writer, -1) != number:
            raise BrokenError(
                f"the offset of {writer} is {kept_offsets.get(writer)}, its last transaction wrote {number}"
            )


def _check_read(
    reader: str, partition: TopicPartition, rows: list[tuple[int, str]], committed_only: bool, found: Contents
) -> None:
    for offset, value in rows:
        row = found.rows.get(offset)
        if row is None or row[0] != value:
            raise BrokenError(f"{partition}: {reader} was given {value!r} at {offset}, where now {row} is")
        if committed_only and offset in found.aborted:
            raise BrokenError(f"{partition}: {reader} was given {value!r} at {offset}, which was aborted")


def _check_group(
    history: History, group: str, partition: TopicPartition, commits: list[CommitCall], found: Contents
) -> None:
    highest = 0
    for event in _in_order(commits):
        if event.is_answer:
            highest = max(highest, event.commit.offset)
        elif event.commit.offset < highest and event.commit.answered_at is not None:
            raise BrokenError(
                f"{partition}: {group} had committed {highest}, and commits {event.commit.offset} later: it went back"
            )
    for offset, value in history.processed.get((group, partition), {}).items():
        if offset not in found.rows or found.rows[offset][0] != value:
            raise BrokenError(f"{partition}: a member of {group} was given {value!r} at {offset}, which is not there")
        if offset in found.aborted:
            raise BrokenError(f"{partition}: a member of {group} was given what was aborted, at {offset}")


@dataclass(slots=True)
class _Event:
    tick: int
    is_answer: bool
    commit: CommitCall


def _in_order(commits: Iterable[CommitCall]) -> list[_Event]:
    events = []
    for commit in commits:
        events.append(_Event(commit.asked_at, False, commit))
        if commit.answered_at is not None:
            events.append(_Event(commit.answered_at, True, commit))
    return sorted(events, key=lambda event: event.tick)


def check_register(name: str, register: Register) -> None:
    """One writer writes rising numbers: a read lies between the last write that was answered before it began, and the
    last that had been asked for when it ended; and never below an earlier read."""
    for read in register.reads:
        assert read.answered_at is not None
        before = max((w.offset for w in register.writes if w.answered_at and w.answered_at < read.asked_at), default=-1)
        latest = max((w.offset for w in register.writes if w.asked_at < read.answered_at), default=-1)
        if not before <= read.offset <= latest:
            raise BrokenError(f"{name}: read {read.offset}, after {before} was written and {latest} asked for")
        earlier = max(
            (r.offset for r in register.reads if r.answered_at is not None and r.answered_at < read.asked_at),
            default=-1,
        )
        if read.offset < earlier:
            raise BrokenError(f"{name}: read {read.offset} after {earlier} had been read")
