"""What consumers tell each other through their group: subscriptions to the leader, assignments from it.

Both travel as bytes of JoinGroup and SyncGroup, an int16 version before the body. Of a subscription, 1 adds the
partitions owned, 2 the generation they are of, 3 the rack; an assignment never changed. A version above 3 is read
as 3, so that newer members can join.
"""

from headrace.protocol.schema import BYTES, INT32, STRING, Array, data, f, struct


@struct
class ConsumerProtocolTopicPartitions:
    topic: str = f(STRING)
    partitions: list[int] = f(Array(INT32))


@data("0-3")
class ConsumerProtocolSubscription:
    topics: list[str] = f(Array(STRING))
    user_data: bytes | None = f(BYTES, nullable="0+", default=None)
    owned_partitions: list[ConsumerProtocolTopicPartitions] = f(Array(ConsumerProtocolTopicPartitions), "1+")
    generation_id: int = f(INT32, "2+", default=-1)
    rack_id: str | None = f(STRING, "3+", nullable="3+", default=None)


@data("0-3")
class ConsumerProtocolAssignment:
    assigned_partitions: list[ConsumerProtocolTopicPartitions] = f(Array(ConsumerProtocolTopicPartitions))
    user_data: bytes | None = f(BYTES, nullable="0+", default=None)
