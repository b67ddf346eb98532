"""DeleteAcls (key 31): delete access control entries that match filters, and tell which.

Versions 1-3. 1 has the pattern type; 2 is flexible; 3 knows the resource type user.
"""

from headrace.protocol.schema import INT8, INT16, INT32, STRING, Array, f, request, response, struct


@struct
class DeleteAclsFilter:
    resource_type_filter: int = f(INT8)
    resource_name_filter: str | None = f(STRING, nullable="0+")
    pattern_type_filter: int = f(INT8, default=3)
    principal_filter: str | None = f(STRING, nullable="0+")
    host_filter: str | None = f(STRING, nullable="0+")
    operation: int = f(INT8)
    permission_type: int = f(INT8)


@request(31, "1-3", flexible=2)
class DeleteAclsRequest:
    filters: list[DeleteAclsFilter] = f(Array(DeleteAclsFilter))


@struct
class DeleteAclsMatchingAcl:
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+")
    resource_type: int = f(INT8)
    resource_name: str = f(STRING)
    pattern_type: int = f(INT8, default=3)
    principal: str = f(STRING)
    host: str = f(STRING)
    operation: int = f(INT8)
    permission_type: int = f(INT8)


@struct
class DeleteAclsFilterResult:
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+")
    matching_acls: list[DeleteAclsMatchingAcl] = f(Array(DeleteAclsMatchingAcl))


@response(31, "1-3", flexible=2)
class DeleteAclsResponse:
    throttle_time_ms: int = f(INT32)
    filter_results: list[DeleteAclsFilterResult] = f(Array(DeleteAclsFilterResult))
