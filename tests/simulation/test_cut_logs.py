"""A log whose end is cut off: what is written in its place was never durable, and must not count as that."""

from __future__ import annotations

from headrace.client.admin.types import NewTopic
from headrace.log import checkpoints
from headrace.testing.simulated import SimulatedCluster, simulated_cluster
from headrace.topics import TopicPartition

KEPT, LOST = 3, 5


async def _cut_off_what_was_synced(cluster: SimulatedCluster) -> tuple[int, int]:
    """A former leader comes back with records on its disk that nobody else has. What its recovery point was before,
    and what it is when others have taken their place."""
    async with cluster.admin() as admin:
        (await admin.create_topics([NewTopic("t", 1, 3)])).all()
    image = cluster.newest_image
    assert image is not None
    leader = image.topics["t"].partitions[0].leader
    broker, machine = cluster.brokers[leader].broker, cluster.brokers[leader]
    assert broker is not None
    async with cluster.producer() as producer:
        for number in range(KEPT):
            await producer.send("t", b"%d" % number)
    partition = broker.partition("t", 0)
    cluster.partition([leader])
    async with cluster.producer(acks=1, enable_idempotence=False) as producer:
        for _ in range(LOST):
            await producer.send("t", b"lost")
    await partition.sync()
    broker.replicas.directories.checkpoint()
    before = _recovery_point(cluster, leader)
    machine.reaches_store = False
    others = [other for other in cluster.alive if other.node_id != leader]
    await cluster.until(lambda: others[0].image.topics["t"].partitions[0].leader != leader, 30.0, "nobody else leads")
    cluster.simulation.network.partition([f"broker-{leader}"], ["writer"])
    async with cluster.producer(host=cluster.client_host("writer")) as producer:
        await producer.send("t", b"kept")
    cluster.heal()
    await cluster.until(lambda: partition.log.end_offset == KEPT + 1, 60.0, "the log is not that of its new leader")
    return before, _recovery_point(cluster, leader)


def _recovery_point(cluster: SimulatedCluster, node_id: int) -> int:
    path = f"/data/one/{checkpoints.RECOVERY_POINT}"
    return checkpoints.read_offsets(cluster.brokers[node_id].host.disk, path)[TopicPartition("t", 0)]


def test_what_takes_the_place_of_synced_records_does_not_count_as_synced() -> None:
    before, after = simulated_cluster(seed=1).run(_cut_off_what_was_synced)
    assert before == KEPT + LOST
    assert after <= KEPT
