"""DescribeConfigs (key 32): configuration of topics, brokers and groups, and where each value comes from.

Versions 1-4. 1 has sources and synonyms; 2 answers before it throttles; 3 adds types and documentation; 4 is
flexible.
"""

from headrace.protocol.schema import BOOL, INT8, INT16, INT32, STRING, Array, f, request, response, struct


@struct
class DescribeConfigsResource:
    resource_type: int = f(INT8)
    resource_name: str = f(STRING)
    configuration_keys: list[str] | None = f(Array(STRING), nullable="0+")


@request(32, "1-4", flexible=4)
class DescribeConfigsRequest:
    resources: list[DescribeConfigsResource] = f(Array(DescribeConfigsResource))
    include_synonyms: bool = f(BOOL)
    include_documentation: bool = f(BOOL, "3+")


@struct
class DescribeConfigsSynonym:
    name: str = f(STRING)
    value: str | None = f(STRING, nullable="0+")
    source: int = f(INT8)


@struct
class DescribeConfigsResourceResult:
    name: str = f(STRING)
    value: str | None = f(STRING, nullable="0+")
    read_only: bool = f(BOOL)
    config_source: int = f(INT8, default=-1)
    is_sensitive: bool = f(BOOL)
    synonyms: list[DescribeConfigsSynonym] = f(Array(DescribeConfigsSynonym))
    config_type: int = f(INT8, "3+")
    documentation: str | None = f(STRING, "3+", nullable="3+")


@struct
class DescribeConfigsResult:
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+")
    resource_type: int = f(INT8)
    resource_name: str = f(STRING)
    configs: list[DescribeConfigsResourceResult] = f(Array(DescribeConfigsResourceResult), shared=True)


@response(32, "1-4", flexible=4)
class DescribeConfigsResponse:
    throttle_time_ms: int = f(INT32)
    results: list[DescribeConfigsResult] = f(Array(DescribeConfigsResult))
