"""Kafka for tests: a broker inside the process (`broker`) or in one of its own (`BrokerProcess`), faults on the way
to it (`FaultProxy`), and a ZooKeeper to share (`ZooKeeperProcess`)."""

from headrace.testing.embedded import EmbeddedBroker, broker
from headrace.testing.processes import BrokerDidNotStart, BrokerProcess, free_port
from headrace.testing.proxy import Cut, Direction, FaultProxy, Reorder
from headrace.testing.zookeeper import NoZooKeeper, ZooKeeperProcess

__all__ = [
    "BrokerDidNotStart",
    "BrokerProcess",
    "Cut",
    "Direction",
    "EmbeddedBroker",
    "FaultProxy",
    "NoZooKeeper",
    "Reorder",
    "ZooKeeperProcess",
    "broker",
    "free_port",
]
