"""Kafka for tests: a broker inside the process (`broker`) or in one of its own (`BrokerProcess`), faults on the way
to it (`FaultProxy`), and a ZooKeeper to share (`ZooKeeperProcess`)."""

from headrace.testing.embedded import EmbeddedBroker, broker
from headrace.testing.processes import BrokerDidNotStartError, BrokerProcess
from headrace.testing.proxy import Cut, Direction, FaultProxy, Reorder
from headrace.testing.server_process import free_port
from headrace.testing.simulated import SimulatedCluster, simulated_cluster
from headrace.testing.zookeeper import ZooKeeperEnsemble, ZooKeeperNotFoundError, ZooKeeperProcess

# The names that these had before, for programs that use them.
BrokerDidNotStart = BrokerDidNotStartError
NoZooKeeper = ZooKeeperNotFoundError

__all__ = [
    "BrokerDidNotStart",
    "BrokerDidNotStartError",
    "BrokerProcess",
    "Cut",
    "Direction",
    "EmbeddedBroker",
    "FaultProxy",
    "NoZooKeeper",
    "Reorder",
    "SimulatedCluster",
    "ZooKeeperEnsemble",
    "ZooKeeperNotFoundError",
    "ZooKeeperProcess",
    "broker",
    "free_port",
    "simulated_cluster",
]
