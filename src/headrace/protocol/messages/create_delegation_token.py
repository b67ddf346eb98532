"""CreateDelegationToken (key 38): a secret by which somebody logs in as its owner, until it expires.

From version 2 on flexible; 3 adds another owner than who asks, and tells who asked. `requester` is our own: it is who
asked the broker that passes the request on.
"""

from headrace.protocol.messages.api_versions import OWN_TAGS
from headrace.protocol.schema import BYTES, INT16, INT32, INT64, STRING, Array, f, request, response, struct


@struct
class CreatableRenewers:
    principal_type: str = f(STRING)
    principal_name: str = f(STRING)


@request(38, "1-3", flexible=2)
class CreateDelegationTokenRequest:
    owner_principal_type: str | None = f(STRING, "3+", nullable="3+")
    owner_principal_name: str | None = f(STRING, "3+", nullable="3+")
    renewers: list[CreatableRenewers] = f(Array(CreatableRenewers))
    max_lifetime_ms: int = f(INT64)
    requester: str = f(STRING, "2+", tag=OWN_TAGS)


@response(38, "1-3", flexible=2)
class CreateDelegationTokenResponse:
    error_code: int = f(INT16)
    principal_type: str = f(STRING)
    principal_name: str = f(STRING)
    token_requester_principal_type: str = f(STRING, "3+")
    token_requester_principal_name: str = f(STRING, "3+")
    issue_timestamp_ms: int = f(INT64)
    expiry_timestamp_ms: int = f(INT64)
    max_timestamp_ms: int = f(INT64)
    token_id: str = f(STRING)
    hmac: bytes = f(BYTES)
    throttle_time_ms: int = f(INT32)
