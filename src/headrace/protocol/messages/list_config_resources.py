"""ListConfigResources (key 74): resources that have a configuration.

Versions 0-1, both flexible. 0 lists client metrics alone; 1 any types of resources, all when none is named.
"""

from headrace.protocol.schema import INT8, INT16, INT32, STRING, Array, f, request, response, struct


@request(74, "0-1", flexible=0)
class ListConfigResourcesRequest:
    resource_types: list[int] = f(Array(INT8), "1+")


@struct
class ConfigResource:
    resource_name: str = f(STRING)
    resource_type: int = f(INT8, "1+", default=16)


@response(74, "0-1", flexible=0)
class ListConfigResourcesResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16)
    config_resources: list[ConfigResource] = f(Array(ConfigResource))
