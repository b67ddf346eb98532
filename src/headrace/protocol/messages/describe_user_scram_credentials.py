"""DescribeUserScramCredentials (key 50): which SCRAM mechanisms users have, with their iterations; never the secrets.

Version 0, flexible.
"""

from headrace.protocol.schema import INT8, INT16, INT32, STRING, Array, f, request, response, struct


@struct
class UserName:
    name: str = f(STRING)


@request(50, "0", flexible=0)
class DescribeUserScramCredentialsRequest:
    users: list[UserName] | None = f(Array(UserName), nullable="0+")


@struct
class CredentialInfo:
    mechanism: int = f(INT8)
    iterations: int = f(INT32)


@struct
class DescribeUserScramCredentialsResult:
    user: str = f(STRING)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+")
    credential_infos: list[CredentialInfo] = f(Array(CredentialInfo))


@response(50, "0", flexible=0)
class DescribeUserScramCredentialsResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+")
    results: list[DescribeUserScramCredentialsResult] = f(Array(DescribeUserScramCredentialsResult))
