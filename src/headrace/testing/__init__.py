"""Kafka for tests: a broker inside the process (`broker`) or in one of its own (`BrokerProcess`), and faults on the way
to it (`FaultProxy`)."""

from headrace.testing.embedded import EmbeddedBroker, broker
from headrace.testing.processes import BrokerDidNotStart, BrokerProcess, free_port
from headrace.testing.proxy import Cut, Direction, FaultProxy, Reorder

__all__ = [
    "BrokerDidNotStart",
    "BrokerProcess",
    "Cut",
    "Direction",
    "EmbeddedBroker",
    "FaultProxy",
    "Reorder",
    "broker",
    "free_port",
]
