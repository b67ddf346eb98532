"""The image: what holds after any decisions, and that replay and snapshots give the same image again."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import fields

import pytest

from headrace.cluster.image import Image, InconsistentMetadataError, PartitionImage
from headrace.cluster.records import (
    NO_LEADER,
    ClearElrRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)

from .random_cluster import RandomCluster

COUNTERS = {"offset", "version", "brokers_version"}


def state(image: Image) -> dict[str, object]:
    """Everything in an image but the counts of how it came to be."""
    found = {f.name: copy.deepcopy(getattr(image, f.name)) for f in fields(image) if f.name not in COUNTERS}
    for topic in found["topics"].values():  # type: ignore[attr-defined]
        topic.version = 0
    for topic in found["topics_by_id"].values():  # type: ignore[attr-defined]
        topic.version = 0
    return found


def folded(records: Iterable[MetadataRecord]) -> Image:
    image = Image()
    for record in records:
        image.apply(record)
    return image


def check_invariants(image: Image) -> None:
    assert {topic.topic_id for topic in image.topics.values()} == set(image.topics_by_id)
    for name, topic in image.topics.items():
        assert topic.name == name
        assert image.topics_by_id[topic.topic_id] is topic
        assert topic.partitions
        for partition in topic.partitions:
            check_partition(image, partition)
    for kind, name in image.configs:
        assert kind != 2 or name in image.topics


def check_partition(image: Image, partition: PartitionImage) -> None:
    assert len(set(partition.replicas)) == len(partition.replicas) > 0
    assert set(partition.isr) <= set(partition.replicas)
    # Somebody has all that was committed, or is known to have led last.
    assert partition.isr or partition.eligible or partition.last_known
    assert not set(partition.isr) & set(partition.eligible)
    assert len(partition.directories) == len(partition.replicas)
    assert set(partition.adding) | set(partition.removing) <= set(partition.replicas)
    if partition.leader != NO_LEADER:
        assert partition.leader in partition.isr
        assert image.is_active(partition.leader)


@pytest.mark.parametrize("seed", range(12))
def test_any_decisions_keep_the_invariants_and_epochs_never_go_back(seed: int) -> None:
    cluster = RandomCluster(seed)
    image = cluster.image
    for _ in range(150):
        before = {topic.topic_id: list(topic.partitions) for topic in image.topics.values()}
        cluster.step()
        check_invariants(image)
        for topic_id, partitions in before.items():
            now = image.topics_by_id.get(topic_id)
            for old, new in zip(partitions, now.partitions if now else []):
                assert new.leader_epoch >= old.leader_epoch
                assert new.partition_epoch >= old.partition_epoch
                if new.leader != old.leader:
                    assert new.leader_epoch > old.leader_epoch
                if new != old:
                    assert new.partition_epoch > old.partition_epoch


@pytest.mark.parametrize("seed", range(12))
def test_replaying_the_log_and_a_snapshot_both_give_the_same_image(seed: int) -> None:
    cluster = RandomCluster(seed + 100)
    for _ in range(150):
        cluster.step()
    assert state(folded(cluster.cluster.log)) == state(cluster.image)
    snapshot = list(cluster.image.to_records())
    assert state(folded(snapshot)) == state(cluster.image)
    assert list(folded(snapshot).to_records()) == snapshot


def test_clean_elections_never_choose_a_replica_out_of_sync() -> None:
    cluster = RandomCluster(77)
    image = cluster.image
    for _ in range(600):
        before = {t.name: list(t.partitions) for t in image.topics.values()}
        cluster.step()
        for name, partitions in before.items():
            topic = image.topics.get(name)
            if topic is None or image.config(2, name).get("unclean.leader.election.enable") == "true":
                continue
            for old, new in zip(partitions, topic.partitions):
                if new.leader not in (old.leader, NO_LEADER) and not new.recovering:
                    assert new.leader in (old.isr or old.eligible)


@pytest.mark.parametrize(
    "record",
    [
        RemoveTopicRecord(topic_id=b"x" * 16),
        PartitionRecord(topic_id=b"x" * 16, partition_id=0),
        PartitionChangeRecord(topic_id=b"x" * 16, partition_id=0),
        PartitionChangeRecord(topic_id=b"a" * 16, partition_id=5),
        PartitionRecord(topic_id=b"a" * 16, partition_id=5),
        TopicRecord(name="a", topic_id=b"b" * 16),
        UnregisterBrokerRecord(broker_id=9),
    ],
)
def test_a_record_that_does_not_fit_those_before_it_is_refused(record: MetadataRecord) -> None:
    image = folded([TopicRecord(name="a", topic_id=b"a" * 16)])
    with pytest.raises(InconsistentMetadataError):
        image.apply(record)


def test_names_that_differ_in_dots_and_underscores_collide_until_deleted() -> None:
    image = folded([TopicRecord(name="a.b_c", topic_id=b"a" * 16)])
    assert image.colliding_topic("a_b.c") == "a.b_c"
    assert image.colliding_topic("a.b_c") is None
    assert image.colliding_topic("abc") is None
    image.apply(RemoveTopicRecord(topic_id=b"a" * 16))
    assert image.colliding_topic("a_b.c") is None


def test_eligible_replicas_are_forgotten_of_one_topic_or_of_all() -> None:
    image = Image()
    for number, name in enumerate(("a", "b")):
        topic_id = bytes([number] * 16)
        image.apply(TopicRecord(name=name, topic_id=topic_id))
        image.apply(PartitionRecord(partition_id=0, topic_id=topic_id, replicas=[1, 2], eligible_leader_replicas=[2]))

    def eligible() -> list[tuple[int, ...]]:
        return [image.topics[name].partitions[0].eligible for name in ("a", "b")]

    image.apply(ClearElrRecord(topic_name="a"))
    assert eligible() == [(), (2,)]
    image.apply(ClearElrRecord(topic_name=None))
    assert eligible() == [(), ()]
