"""DeleteShareGroupOffsets (key 92): forget where a share group without members has got to in topics.

Version 0.
"""

from headrace.protocol.schema import INT16, INT32, STRING, UUID, Array, f, request, response, struct


@struct
class DeleteShareGroupOffsetsRequestTopic:
    topic_name: str = f(STRING)


@request(92, "0", flexible=0)
class DeleteShareGroupOffsetsRequest:
    group_id: str = f(STRING)
    topics: list[DeleteShareGroupOffsetsRequestTopic] = f(Array(DeleteShareGroupOffsetsRequestTopic))


@struct
class DeleteShareGroupOffsetsResponseTopic:
    topic_name: str = f(STRING)
    topic_id: bytes = f(UUID)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+", default=None)


@response(92, "0", flexible=0)
class DeleteShareGroupOffsetsResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+", default=None)
    responses: list[DeleteShareGroupOffsetsResponseTopic] = f(Array(DeleteShareGroupOffsetsResponseTopic))
