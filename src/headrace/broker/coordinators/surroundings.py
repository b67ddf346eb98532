"""What coordinators need of the broker around them, in one place that tests can put another into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.broker.metadata.identity import Identity
from headrace.broker.partitions.leaders import Leaders
from headrace.broker.partitions.replicas import Replicas
from headrace.broker.peers import MakePeers
from headrace.broker.view import ClusterView
from headrace.runtime import Runtime


@dataclass(frozen=True, slots=True)
class CoordinatorSurroundings:
    runtime: Runtime
    cluster: ClusterView
    replicas: Replicas
    leaders: Leaders
    #: Whether a broker that the metadata names is this one.
    identity: Identity
    #: Why others may have taken this broker's place without its knowing; None when it knows.
    out_of_touch: Callable[[], str | None]
    make_peers: MakePeers
