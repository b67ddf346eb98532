"""Which replica a consumer reads from (KIP-392): the leader, unless `replica.selector.class` knows a nearer one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.view import ClusterView

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def nearest(cluster: ClusterView, partition: Partition, offset: int, rack: str) -> int | None:
    """The replica in the consumer's rack that has its offset and is in sync; None when the leader serves it.

    Of several the one that has most, which is the least behind.
    """
    state = partition.state
    if state is None or cluster.config.values.get("replica.selector.class") != RACK_AWARE:
        return None
    brokers = cluster.image.brokers
    here = brokers.get(cluster.node_id)
    if here is not None and here.rack == rack:
        return None
    candidates = [
        one
        for one in state.progress.values()
        if one.broker_id in state.term.isr
        and (found := brokers.get(one.broker_id)) is not None
        and found.is_active
        and found.rack == rack
        and one.start_offset <= offset <= one.end_offset
    ]
    return max(candidates, key=lambda one: one.end_offset).broker_id if candidates else None
