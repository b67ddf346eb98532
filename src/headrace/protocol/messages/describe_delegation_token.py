"""DescribeDelegationToken (key 41): the tokens that whoever asks may see. From version 2 on flexible; 3 tells who asked
for each."""

from headrace.protocol.schema import BYTES, INT16, INT32, INT64, STRING, Array, f, request, response, struct


@struct
class DescribeDelegationTokenOwner:
    principal_type: str = f(STRING)
    principal_name: str = f(STRING)


@request(41, "1-3", flexible=2)
class DescribeDelegationTokenRequest:
    owners: list[DescribeDelegationTokenOwner] | None = f(Array(DescribeDelegationTokenOwner), nullable="0+")


@struct
class DescribedDelegationTokenRenewer:
    principal_type: str = f(STRING)
    principal_name: str = f(STRING)


@struct
class DescribedDelegationToken:
    principal_type: str = f(STRING)
    principal_name: str = f(STRING)
    token_requester_principal_type: str = f(STRING, "3+")
    token_requester_principal_name: str = f(STRING, "3+")
    issue_timestamp: int = f(INT64)
    expiry_timestamp: int = f(INT64)
    max_timestamp: int = f(INT64)
    token_id: str = f(STRING)
    hmac: bytes = f(BYTES)
    renewers: list[DescribedDelegationTokenRenewer] = f(Array(DescribedDelegationTokenRenewer))


@response(41, "1-3", flexible=2)
class DescribeDelegationTokenResponse:
    error_code: int = f(INT16)
    tokens: list[DescribedDelegationToken] = f(Array(DescribedDelegationToken))
    throttle_time_ms: int = f(INT32)
