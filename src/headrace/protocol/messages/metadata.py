"""Metadata (key 3): brokers, controller, topics with their partitions, leaders and replicas.

Versions 0-13. 1 adds controller, racks and internal topics, and null topics ask for all of them; 2 the cluster id; 4
lets the client forbid auto-creation; 5 offline replicas; 7 leader epochs; 8 authorized operations; 9 is flexible; 10
topic ids; 11 drops the cluster's authorized operations; 12 lets topics be asked for by id alone; 13 a top-level
error.
"""

from headrace.protocol.schema import BOOL, INT16, INT32, STRING, UUID, Array, f, request, response, struct

AUTHORIZED_OPERATIONS_OMITTED = -2147483648


@struct
class MetadataRequestTopic:
    topic_id: bytes = f(UUID, "10+")
    name: str | None = f(STRING, nullable="10+")


@request(3, "0-13", flexible=9)
class MetadataRequest:
    topics: list[MetadataRequestTopic] | None = f(Array(MetadataRequestTopic), nullable="1+")
    allow_auto_topic_creation: bool = f(BOOL, "4+", default=True)
    include_cluster_authorized_operations: bool = f(BOOL, "8-10")
    include_topic_authorized_operations: bool = f(BOOL, "8+")


@struct
class MetadataResponseBroker:
    node_id: int = f(INT32)
    host: str = f(STRING)
    port: int = f(INT32)
    rack: str | None = f(STRING, "1+", nullable="1+", default=None)


@struct
class MetadataResponsePartition:
    error_code: int = f(INT16)
    partition_index: int = f(INT32)
    leader_id: int = f(INT32)
    leader_epoch: int = f(INT32, "7+", default=-1)
    replica_nodes: list[int] = f(Array(INT32))
    isr_nodes: list[int] = f(Array(INT32))
    offline_replicas: list[int] = f(Array(INT32), "5+")


@struct
class MetadataResponseTopic:
    error_code: int = f(INT16)
    name: str | None = f(STRING, nullable="12+")
    topic_id: bytes = f(UUID, "10+")
    is_internal: bool = f(BOOL, "1+")
    partitions: list[MetadataResponsePartition] = f(Array(MetadataResponsePartition))
    topic_authorized_operations: int = f(INT32, "8+", default=AUTHORIZED_OPERATIONS_OMITTED)


@response(3, "0-13", flexible=9)
class MetadataResponse:
    throttle_time_ms: int = f(INT32, "3+")
    brokers: list[MetadataResponseBroker] = f(Array(MetadataResponseBroker))
    cluster_id: str | None = f(STRING, "2+", nullable="2+", default=None)
    controller_id: int = f(INT32, "1+", default=-1)
    topics: list[MetadataResponseTopic] = f(Array(MetadataResponseTopic))
    cluster_authorized_operations: int = f(INT32, "8-10", default=AUTHORIZED_OPERATIONS_OMITTED)
    error_code: int = f(INT16, "13+")
