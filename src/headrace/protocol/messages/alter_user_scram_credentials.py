"""AlterUserScramCredentials (key 51): set or delete users' SCRAM credentials, salted by the client.

Version 0, flexible.
"""

from headrace.protocol.schema import BYTES, INT8, INT16, INT32, STRING, Array, f, request, response, struct


@struct
class ScramCredentialDeletion:
    name: str = f(STRING)
    mechanism: int = f(INT8)


@struct
class ScramCredentialUpsertion:
    name: str = f(STRING)
    mechanism: int = f(INT8)
    iterations: int = f(INT32)
    salt: bytes = f(BYTES)
    salted_password: bytes = f(BYTES)


@request(51, "0", flexible=0)
class AlterUserScramCredentialsRequest:
    deletions: list[ScramCredentialDeletion] = f(Array(ScramCredentialDeletion))
    upsertions: list[ScramCredentialUpsertion] = f(Array(ScramCredentialUpsertion))


@struct
class AlterUserScramCredentialsResult:
    user: str = f(STRING)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+")


@response(51, "0", flexible=0)
class AlterUserScramCredentialsResponse:
    throttle_time_ms: int = f(INT32)
    results: list[AlterUserScramCredentialsResult] = f(Array(AlterUserScramCredentialsResult))
