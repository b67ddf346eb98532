"""Kafka for tests: a broker inside the process (`broker`) or several in processes of their own (`cluster`), faults on
the way to them (`FaultProxy`), a schema registry (`registry`), a ZooKeeper to share (`ZooKeeperProcess`), and a cluster
in virtual time (`simulated_cluster`). Its fixtures of pytest are in `headrace.testing.pytest_plugin`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.testing.brokers import Cluster, cluster
    from headrace.testing.embedded import EmbeddedBroker, broker
    from headrace.testing.processes import BrokerDidNotStartError, BrokerProcess
    from headrace.testing.proxy import Cut, Direction, FaultProxy, Reorder
    from headrace.testing.schema_registry import EmbeddedRegistry, registry
    from headrace.testing.secured import Secured
    from headrace.testing.server_process import free_port
    from headrace.testing.simulated.cluster import SimulatedCluster, simulated_cluster
    from headrace.testing.zookeeper import ZooKeeperEnsemble, ZooKeeperNotFoundError, ZooKeeperProcess

    BrokerDidNotStart = BrokerDidNotStartError
    NoZooKeeper = ZooKeeperNotFoundError

# Loaded when first used: pytest imports this package for everyone who has Headrace installed, used or not.
_LAZY = {
    "BrokerDidNotStartError": "processes",
    "BrokerProcess": "processes",
    "Cluster": "brokers",
    "Cut": "proxy",
    "Direction": "proxy",
    "EmbeddedBroker": "embedded",
    "EmbeddedRegistry": "schema_registry",
    "FaultProxy": "proxy",
    "Reorder": "proxy",
    "Secured": "secured",
    "SimulatedCluster": "simulated.cluster",
    "ZooKeeperEnsemble": "zookeeper",
    "ZooKeeperNotFoundError": "zookeeper",
    "ZooKeeperProcess": "zookeeper",
    "broker": "embedded",
    "cluster": "brokers",
    "free_port": "server_process",
    "registry": "schema_registry",
    "simulated_cluster": "simulated.cluster",
}
# The names that these had before, for programs that use them.
_FORMER = {"BrokerDidNotStart": "BrokerDidNotStartError", "NoZooKeeper": "ZooKeeperNotFoundError"}

__all__ = [
    "BrokerDidNotStart",
    "BrokerDidNotStartError",
    "BrokerProcess",
    "Cluster",
    "Cut",
    "Direction",
    "EmbeddedBroker",
    "EmbeddedRegistry",
    "FaultProxy",
    "NoZooKeeper",
    "Reorder",
    "Secured",
    "SimulatedCluster",
    "ZooKeeperEnsemble",
    "ZooKeeperNotFoundError",
    "ZooKeeperProcess",
    "broker",
    "cluster",
    "free_port",
    "registry",
    "simulated_cluster",
]


def __getattr__(name: str) -> Any:
    name = _FORMER.get(name, name)
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return __all__
