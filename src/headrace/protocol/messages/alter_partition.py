"""AlterPartition (key 56): a leader asks the controller to change its partitions' in-sync replicas.

Versions 2-3, between brokers, both flexible. 2 has topic ids; 3 adds each replica's broker epoch
(`new_isr_with_epochs` in place of `new_isr`).
"""

from headrace.protocol.schema import INT8, INT16, INT32, INT64, UUID, Array, f, request, response, struct


@struct
class BrokerState:
    broker_id: int = f(INT32)
    broker_epoch: int = f(INT64, default=-1)


@struct
class AlterPartitionRequestPartitionData:
    partition_index: int = f(INT32)
    leader_epoch: int = f(INT32)
    new_isr: list[int] = f(Array(INT32), "0-2")
    new_isr_with_epochs: list[BrokerState] = f(Array(BrokerState), "3+")
    leader_recovery_state: int = f(INT8)
    partition_epoch: int = f(INT32)


@struct
class AlterPartitionRequestTopicData:
    topic_id: bytes = f(UUID)
    partitions: list[AlterPartitionRequestPartitionData] = f(Array(AlterPartitionRequestPartitionData))


@request(56, "2-3", flexible=0)
class AlterPartitionRequest:
    broker_id: int = f(INT32)
    broker_epoch: int = f(INT64, default=-1)
    topics: list[AlterPartitionRequestTopicData] = f(Array(AlterPartitionRequestTopicData))


@struct
class AlterPartitionResponsePartitionData:
    partition_index: int = f(INT32)
    error_code: int = f(INT16)
    leader_id: int = f(INT32)
    leader_epoch: int = f(INT32)
    isr: list[int] = f(Array(INT32))
    leader_recovery_state: int = f(INT8)
    partition_epoch: int = f(INT32)


@struct
class AlterPartitionResponseTopicData:
    topic_id: bytes = f(UUID)
    partitions: list[AlterPartitionResponsePartitionData] = f(Array(AlterPartitionResponsePartitionData))


@response(56, "2-3", flexible=0)
class AlterPartitionResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16)
    topics: list[AlterPartitionResponseTopicData] = f(Array(AlterPartitionResponseTopicData))
