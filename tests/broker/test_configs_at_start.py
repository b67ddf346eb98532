"""Configurations of topics that change while a broker starts: its logs go by them all the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.broker import startup
from headrace.client.admin.types import ConfigResource, NewTopic, ResourceType
from headrace.testing.simulated import SimulatedCluster, simulated_cluster

_TOPIC = ConfigResource(ResourceType.TOPIC, "t")


def test_a_topic_that_is_configured_anew_between_opening_a_log_and_serving_it(monkeypatch: pytest.MonkeyPatch) -> None:
    open_logs = startup.open_logs

    async def story(cluster: SimulatedCluster) -> tuple[int, int]:
        async with cluster.admin() as admin:
            (await admin.create_topics([NewTopic("t", 1, 3)])).all()
            starting = next(node_id for node_id in cluster.brokers if node_id != cluster.controller_id)
            cluster.kill(starting)

            async def open_slowly(broker: Any) -> Any:
                logs = await open_logs(broker)
                (await admin.incremental_alter_configs({_TOPIC: {"retention.ms": "1000"}})).all()
                return logs

            monkeypatch.setattr(startup, "open_logs", open_slowly)
            await asyncio.wait_for(cluster.restart(starting), 60.0)
        broker = cluster.brokers[starting].broker
        assert broker is not None
        log = broker.replicas.partitions["t", 0].log
        return log.config.retention_ms, broker.log_config("t").retention_ms

    assert simulated_cluster(seed=1).run(story) == (1000, 1000)
