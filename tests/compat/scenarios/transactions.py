"""What is asked of producers and their transactions, from a producer's id to the markers."""

from __future__ import annotations

from typing import Any

from tests.waiting import eventually

from ..wire import batch
from ..world import NONE, World, fetch_of
from .told import scenario


@scenario
def init_producer_id(world: World, version: int) -> None:
    seen = {
        world.ask("init_producer_id", version, transactional_id=None, transaction_timeout=60_000).producer_id
        for _ in range(3)
    }
    assert len(seen) == 3
    assert min(seen) >= 0


@scenario
def add_partitions_to_txn(world: World, version: int) -> None:
    topic, _ = world.topic()
    transactional_id = world.name("txn")
    producer_id, epoch = world.producer(transactional_id)
    topics = [{"name": topic, "partitions": [0]}]
    one = {
        "transactional_id": transactional_id,
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "verify_only": False,
        "topics": topics,
    }
    old = {
        "v3_and_below_transactional_id": transactional_id,
        "v3_and_below_producer_id": producer_id,
        "v3_and_below_producer_epoch": epoch,
        "v3_and_below_topics": topics,
    }
    answer = world.ask("add_partitions_to_txn", version, transactions=[one], **old)
    if version >= 4:
        assert answer.error_code == NONE
        results = answer.results_by_transaction[0].topic_results
    else:
        results = answer.results_by_topic_v3_and_below
    assert results[0].results_by_partition[0].partition_error_code == NONE
    world.append(topic, batch(b"a", producer=(producer_id, epoch, 0), transactional=True), transactional_id)
    _end(world, 3, transactional_id, producer_id, epoch)
    _wait_for_stable(world, topic, 2)


def _end(world: World, version: int, transactional_id: str, producer_id: int, epoch: int) -> Any:
    answer = world.ask(
        "end_txn",
        version,
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=epoch,
        committed=True,
    )
    assert answer.error_code == NONE, answer
    return answer


def _wait_for_stable(world: World, topic: str, offset: int) -> None:
    def stable() -> bool:
        found = world.ask("fetch", 11, **{**fetch_of(topic, None, offset=0), "max_wait": 0}).responses[0].partitions[0]
        return bool(found.last_stable_offset == offset)

    eventually(stable, what="the end of the transaction")


def _begin(world: World, topic: str) -> tuple[str, int, int]:
    transactional_id = world.name("txn")
    producer_id, epoch = world.producer(transactional_id)
    answer = world.ask(
        "add_partitions_to_txn",
        3,
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[{"name": topic, "partitions": [0]}],
    )
    assert answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == NONE
    world.append(topic, batch(b"a", producer=(producer_id, epoch, 0), transactional=True), transactional_id)
    return transactional_id, producer_id, epoch


@scenario
def end_txn(world: World, version: int) -> None:
    topic, _ = world.topic()
    transactional_id, producer_id, epoch = _begin(world, topic)
    answer = _end(world, version, transactional_id, producer_id, epoch)
    if version >= 5:
        assert (answer.producer_id, answer.producer_epoch) == (producer_id, epoch + 1)
    _wait_for_stable(world, topic, 2)


@scenario
def add_offsets_to_txn(world: World, version: int) -> None:
    transactional_id = world.name("txn")
    producer_id, epoch = world.producer(transactional_id)
    group = world.name("group")
    world.coordinator(group)
    answer = world.ask(
        "add_offsets_to_txn",
        version,
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=epoch,
        group_id=group,
    )
    assert answer.error_code == NONE
    _end(world, 3, transactional_id, producer_id, epoch)


@scenario
def txn_offset_commit(world: World, version: int) -> None:
    topic, _ = world.filled()
    transactional_id = world.name("txn")
    producer_id, epoch = world.producer(transactional_id)
    group = world.name("group")
    world.coordinator(group)
    common = {
        "transactional_id": transactional_id,
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "group_id": group,
    }
    assert world.ask("add_offsets_to_txn", 3, **common).error_code == NONE
    part = {"partition_index": 0, "committed_offset": 2, "committed_leader_epoch": -1, "committed_metadata": "note"}
    answer = world.ask(
        "txn_offset_commit",
        version,
        **common,
        generation_id=-1,
        member_id="",
        topics=[{"name": topic, "partitions": [part]}],
    )
    assert answer.topics[0].partitions[0].error_code == NONE
    assert world.committed(group, topic)[0] == -1
    _end(world, 3, transactional_id, producer_id, epoch)
    eventually(lambda: world.committed(group, topic) == (2, "note"), what="the offsets of the transaction")


@scenario
def write_txn_markers(world: World, version: int) -> None:
    topic, _ = world.topic()
    _, producer_id, epoch = _begin(world, topic)
    marker = {
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "transaction_result": False,
        "topics": [{"name": topic, "partition_indexes": [0]}],
        "coordinator_epoch": 0,
    }
    answer = world.ask("write_txn_markers", version, markers=[marker])
    assert answer.markers[0].topics[0].partitions[0].error_code == NONE
    _wait_for_stable(world, topic, 2)


@scenario
def describe_transactions(world: World, version: int) -> None:
    topic, _ = world.topic()
    transactional_id, producer_id, epoch = _begin(world, topic)
    found = world.ask("describe_transactions", version, transactional_ids=[transactional_id]).transaction_states[0]
    assert (found.error_code, found.transaction_state, found.producer_id) == (NONE, "Ongoing", producer_id)
    assert [(t.topic, t.partitions) for t in found.topics] == [(topic, (0,))]
    _end(world, 3, transactional_id, producer_id, epoch)


@scenario
def list_transactions(world: World, version: int) -> None:
    topic, _ = world.topic()
    transactional_id, producer_id, epoch = _begin(world, topic)
    found = world.ask("list_transactions", version, state_filters=["Ongoing"], duration_filter=-1)
    assert found.error_code == NONE
    assert (transactional_id, producer_id) in {(s.transactional_id, s.producer_id) for s in found.transaction_states}
    _end(world, 3, transactional_id, producer_id, epoch)
