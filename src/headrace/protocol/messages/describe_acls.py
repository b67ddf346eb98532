"""DescribeAcls (key 29): access control entries that match a filter.

Versions 1-3. 1 has the pattern type; 2 is flexible; 3 knows the resource type user.
"""

from headrace.protocol.schema import INT8, INT16, INT32, STRING, Array, f, request, response, struct


@request(29, "1-3", flexible=2)
class DescribeAclsRequest:
    resource_type_filter: int = f(INT8)
    resource_name_filter: str | None = f(STRING, nullable="0+")
    pattern_type_filter: int = f(INT8, default=3)
    principal_filter: str | None = f(STRING, nullable="0+")
    host_filter: str | None = f(STRING, nullable="0+")
    operation: int = f(INT8)
    permission_type: int = f(INT8)


@struct
class AclDescription:
    principal: str = f(STRING)
    host: str = f(STRING)
    operation: int = f(INT8)
    permission_type: int = f(INT8)


@struct
class DescribeAclsResource:
    resource_type: int = f(INT8)
    resource_name: str = f(STRING)
    pattern_type: int = f(INT8, default=3)
    acls: list[AclDescription] = f(Array(AclDescription))


@response(29, "1-3", flexible=2)
class DescribeAclsResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+")
    resources: list[DescribeAclsResource] = f(Array(DescribeAclsResource))
