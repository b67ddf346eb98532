"""How a client finds the cluster and what it knows of it: bootstrap servers, metadata, leaders, coordinators."""

from headrace.client.cluster.core import ANY_NODE, ClientCore, coordinator_key
from headrace.client.cluster.drivers import AsyncClient, BlockingClient
from headrace.client.cluster.view import ClusterView, PartitionView, TopicView

__all__ = [
    "ANY_NODE",
    "AsyncClient",
    "BlockingClient",
    "ClientCore",
    "ClusterView",
    "PartitionView",
    "TopicView",
    "coordinator_key",
]
