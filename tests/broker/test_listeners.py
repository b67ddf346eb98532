"""`listeners` as a server.properties of Kafka's has them."""

from __future__ import annotations

import pytest

from headrace.broker.listeners import parse_listeners
from headrace.cluster.broker_config import BrokerConfig
from headrace.config import ConfigError

KRAFT = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.bootstrap.servers": "localhost:9093",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
    "inter.broker.listener.name": "PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
}


def test_a_controllers_listener_needs_no_protocol() -> None:
    (listener,) = parse_listeners(BrokerConfig.parse(KRAFT))
    assert (listener.name, listener.port, listener.protocol) == ("PLAINTEXT", 9092, "PLAINTEXT")
    names = {**KRAFT, "controller.listener.names": "OTHER, CONTROLLER"}
    assert len(parse_listeners(BrokerConfig.parse(names))) == 1


def test_a_name_without_a_protocol_is_answered_with_where_to_give_it_one() -> None:
    with pytest.raises(ConfigError, match=r"EXTERNAL has no security protocol.*EXTERNAL:PLAINTEXT"):
        parse_listeners(BrokerConfig.parse({"listeners": "EXTERNAL://:9092"}))
