"""A cluster in one process under a seed: for tests of one's own, and to look for faults of Headrace itself."""

from headrace.testing.simulated.cluster import ClusterUnderSeed, SimulatedBroker, SimulatedCluster, simulated_cluster

__all__ = ["ClusterUnderSeed", "SimulatedBroker", "SimulatedCluster", "simulated_cluster"]
