"""Kafka for tests: a broker inside the process (`broker`) or in one of its own (`BrokerProcess`)."""

from headrace.testing.embedded import EmbeddedBroker, broker
from headrace.testing.processes import BrokerDidNotStart, BrokerProcess, free_port

__all__ = ["BrokerDidNotStart", "BrokerProcess", "EmbeddedBroker", "broker", "free_port"]
