"""Several listeners: a client is told the addresses of the one that it came through."""

from __future__ import annotations

import pytest

from headrace.protocol.messages.describe_cluster import DescribeClusterRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.runtime.simulated import Simulation, run_simulation

from .raw import AsyncRawClient
from .sim import SimulatedBroker

INSIDE, OUTSIDE = 9092, 9094
SETTINGS = {
    "listeners": f"INSIDE://broker:{INSIDE},OUTSIDE://broker:{OUTSIDE}",
    "advertised.listeners": f"INSIDE://broker:{INSIDE},OUTSIDE://world:{OUTSIDE}",
    "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
    "inter.broker.listener.name": "INSIDE",
}


@pytest.mark.parametrize(("port", "host"), [(INSIDE, "broker"), (OUTSIDE, "world")])
def test_every_answer_names_the_address_of_the_clients_own_listener(port: int, host: str) -> None:
    async def ask(simulation: Simulation) -> set[tuple[str, int]]:
        broker = SimulatedBroker(simulation, SETTINGS)
        await broker.start()
        client = await AsyncRawClient.connect(simulation.host("client").runtime, "broker", port)
        metadata = await client.request(MetadataRequest(topics=[]), 9)
        cluster = await client.request(DescribeClusterRequest(), 1)
        several = await client.request(FindCoordinatorRequest(coordinator_keys=["g"], key_type=0), 4)
        one = await client.request(FindCoordinatorRequest(key="id", key_type=1), 3)
        client.close()
        await broker.stop()
        nodes = [*metadata.brokers, *cluster.brokers, *several.coordinators, one]
        return {(node.host, node.port) for node in nodes}

    assert run_simulation(ask, seed=1).value == {(host, port)}
