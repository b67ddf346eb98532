"""AlterConfigs (key 33): replace the whole configuration of a resource; IncrementalAlterConfigs is the better one.

Versions 0-2. 1 answers before it throttles; 2 is flexible.
"""

from headrace.protocol.schema import BOOL, INT8, INT16, INT32, STRING, Array, f, request, response, struct


@struct
class AlterableConfig:
    name: str = f(STRING)
    value: str | None = f(STRING, nullable="0+")


@struct
class AlterConfigsResource:
    resource_type: int = f(INT8)
    resource_name: str = f(STRING)
    configs: list[AlterableConfig] = f(Array(AlterableConfig))


@request(33, "0-2", flexible=2)
class AlterConfigsRequest:
    resources: list[AlterConfigsResource] = f(Array(AlterConfigsResource))
    validate_only: bool = f(BOOL)


@struct
class AlterConfigsResourceResponse:
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+")
    resource_type: int = f(INT8)
    resource_name: str = f(STRING)


@response(33, "0-2", flexible=2)
class AlterConfigsResponse:
    throttle_time_ms: int = f(INT32)
    responses: list[AlterConfigsResourceResponse] = f(Array(AlterConfigsResourceResponse))
