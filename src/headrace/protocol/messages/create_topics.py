"""CreateTopics (key 19): make topics, or only check whether they could be made.

Versions 2-7. 3 answers before it throttles; 4 lets partitions and replication factor be the broker's default (-1); 5
is flexible, and answers what was made and its configuration; 6 may answer THROTTLING_QUOTA_EXCEEDED; 7 adds the
topic's id.
"""

from headrace.protocol.schema import BOOL, INT8, INT16, INT32, STRING, UUID, Array, f, request, response, struct


@struct
class CreatableReplicaAssignment:
    partition_index: int = f(INT32)
    broker_ids: list[int] = f(Array(INT32))


@struct
class CreatableTopicConfig:
    name: str = f(STRING)
    value: str | None = f(STRING, nullable="0+")


@struct
class CreatableTopic:
    name: str = f(STRING)
    num_partitions: int = f(INT32)
    replication_factor: int = f(INT16)
    assignments: list[CreatableReplicaAssignment] = f(Array(CreatableReplicaAssignment))
    configs: list[CreatableTopicConfig] = f(Array(CreatableTopicConfig))


@request(19, "2-7", flexible=5)
class CreateTopicsRequest:
    topics: list[CreatableTopic] = f(Array(CreatableTopic))
    timeout_ms: int = f(INT32, default=60000)
    validate_only: bool = f(BOOL)


@struct
class CreatableTopicConfigs:
    name: str = f(STRING)
    value: str | None = f(STRING, nullable="0+")
    read_only: bool = f(BOOL)
    config_source: int = f(INT8, default=-1)
    is_sensitive: bool = f(BOOL)


@struct
class CreatableTopicResult:
    name: str = f(STRING)
    topic_id: bytes = f(UUID, "7+")
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+")
    topic_config_error_code: int = f(INT16, "5+", tag=0)
    num_partitions: int = f(INT32, "5+", default=-1)
    replication_factor: int = f(INT16, "5+", default=-1)
    configs: list[CreatableTopicConfigs] | None = f(Array(CreatableTopicConfigs), "5+", nullable="5+", shared=True)


@response(19, "2-7", flexible=5)
class CreateTopicsResponse:
    throttle_time_ms: int = f(INT32)
    topics: list[CreatableTopicResult] = f(Array(CreatableTopicResult))
