"""CreateAcls (key 30): add access control entries.

Versions 1-3. 1 has the pattern type; 2 is flexible; 3 knows the resource type user.
"""

from headrace.protocol.schema import INT8, INT16, INT32, STRING, Array, f, request, response, struct


@struct
class AclCreation:
    resource_type: int = f(INT8)
    resource_name: str = f(STRING)
    resource_pattern_type: int = f(INT8, default=3)
    principal: str = f(STRING)
    host: str = f(STRING)
    operation: int = f(INT8)
    permission_type: int = f(INT8)


@request(30, "1-3", flexible=2)
class CreateAclsRequest:
    creations: list[AclCreation] = f(Array(AclCreation))


@struct
class AclCreationResult:
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+")


@response(30, "1-3", flexible=2)
class CreateAclsResponse:
    throttle_time_ms: int = f(INT32)
    results: list[AclCreationResult] = f(Array(AclCreationResult))
