"""DeleteTopics (key 20): delete topics by name or by id.

Versions 1-6. 2 answers before it throttles; 3 may answer TOPIC_DELETION_DISABLED; 4 is flexible; 5 adds an error
message, and may answer THROTTLING_QUOTA_EXCEEDED; 6 takes topics by name or id (`topics` in place of `topic_names`).
"""

from headrace.protocol.schema import INT16, INT32, STRING, UUID, Array, f, request, response, struct


@struct
class DeleteTopicState:
    name: str | None = f(STRING, nullable="0+", default=None)
    topic_id: bytes = f(UUID)


@request(20, "1-6", flexible=4)
class DeleteTopicsRequest:
    topics: list[DeleteTopicState] = f(Array(DeleteTopicState), "6+")
    topic_names: list[str] = f(Array(STRING), "0-5")
    timeout_ms: int = f(INT32)


@struct
class DeletableTopicResult:
    name: str | None = f(STRING, nullable="6+")
    topic_id: bytes = f(UUID, "6+")
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, "5+", nullable="5+", default=None)


@response(20, "1-6", flexible=4)
class DeleteTopicsResponse:
    throttle_time_ms: int = f(INT32)
    responses: list[DeletableTopicResult] = f(Array(DeletableTopicResult))
