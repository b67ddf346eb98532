"""What an operator changes in a running cluster: nothing that was acknowledged is lost by it."""

from __future__ import annotations

import asyncio

import pytest

from headrace.client.admin.types import ConfigResource, FeatureUpdate, NewTopic, ResourceType, UpgradeType
from headrace.errors import HeadraceError
from headrace.testing.simulated import SimulatedCluster, simulated_cluster

ELIGIBLE = "eligible.leader.replicas.version"


@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_committed_by_a_minimum_of_a_brokers_own_is_not_lost_when_replicas_become_eligible(seed: int) -> None:
    """The controller counted by the cluster's minimum and elected one that lacked what the leader had committed."""

    async def story(cluster: SimulatedCluster) -> None:
        async with cluster.admin(host=cluster.client_host("operator")) as admin:
            (await admin.update_features({ELIGIBLE: FeatureUpdate(0, UpgradeType.SAFE_DOWNGRADE)})).all()
            leader = next(number for number in cluster.brokers if number != cluster.controller_id)
            rest = [number for number in cluster.brokers if number not in (leader, cluster.controller_id)]
            of_leader = ConfigResource(ResourceType.BROKER, str(leader))
            (await admin.incremental_alter_configs({of_leader: {"min.insync.replicas": "1"}})).all()
            (await admin.create_topics([NewTopic("t", replicas_assignments={0: [leader, *rest]})])).all()
            (await admin.update_features({ELIGIBLE: FeatureUpdate(1)})).all()
        acknowledged = 0
        async with cluster.producer(delivery_timeout_ms=3000, request_timeout_ms=1000, acks="all") as producer:
            await producer.send("t", b"one", partition=0)
            for number in rest:
                await cluster.stop(number)
            try:
                await producer.send("t", b"two", partition=0)
                acknowledged = 2
            except HeadraceError:
                acknowledged = 1
        cluster.kill(leader)
        for number in rest:
            await cluster.brokers[number].start()

        def led() -> bool:
            image = cluster.newest_image
            return image is not None and image.topics["t"].partitions[0].leader in rest

        await cluster.until(led, 20.0, "nobody leads")
        await asyncio.sleep(0.5)
        image = cluster.newest_image
        assert image is not None
        leading = cluster.brokers[image.topics["t"].partitions[0].leader].broker
        assert leading is not None
        assert leading.partition("t", 0).log.end_offset >= acknowledged

    simulated_cluster(seed, brokers=4, settings={"min.insync.replicas": "2"}).run(story)
