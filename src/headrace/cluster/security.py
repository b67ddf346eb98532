"""Users' SCRAM credentials, and the answers about access control of a cluster that has none."""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from typing import Final, NamedTuple

from headrace.cluster.decision import ApiError, Decision
from headrace.cluster.image import Image
from headrace.cluster.records import MetadataRecord, RemoveUserScramCredentialRecord, UserScramCredentialRecord
from headrace.error_codes import ErrorCode
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from headrace.protocol.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from headrace.protocol.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse
from headrace.protocol.messages.describe_acls import DescribeAclsResponse
from headrace.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


class Mechanism(NamedTuple):
    name: str
    hash_name: str
    iterations_min: int
    iterations_max: int


SCRAM_MECHANISMS: Final = {
    1: Mechanism("SCRAM-SHA-256", "sha256", 4096, 16384),
    2: Mechanism("SCRAM-SHA-512", "sha512", 4096, 16384),
}
_NO_AUTHORIZER: Final = "No authorizer is configured on the broker (authorizer.class.name), so there are no ACLs."


def alter_scram(image: Image, request: AlterUserScramCredentialsRequest) -> Decision[AlterUserScramCredentialsResponse]:
    """One change per user and request; a user whose change is wrong does not stop those of others.

    The first thing wrong with a user is what is told: a second change is refused only after a first that was right.
    """
    errors: dict[str, ApiError] = {}
    removed: dict[str, MetadataRecord] = {}
    upserted: dict[str, ScramCredentialUpsertion] = {}
    for deletion in request.deletions:
        if deletion.name in errors:
            continue
        if removed.pop(deletion.name, None) is not None:
            errors[deletion.name] = _changed_twice()
            continue
        problem = _deletion_problem(image, deletion)
        if problem is not None:
            errors[deletion.name] = problem
        else:
            removed[deletion.name] = RemoveUserScramCredentialRecord(name=deletion.name, mechanism=deletion.mechanism)
    for upsertion in request.upsertions:
        if upsertion.name in errors:
            continue
        if removed.pop(upsertion.name, None) is not None or upserted.pop(upsertion.name, None) is not None:
            errors[upsertion.name] = _changed_twice()
            continue
        problem = _upsertion_problem(upsertion)
        if problem is not None:
            errors[upsertion.name] = problem
        else:
            upserted[upsertion.name] = upsertion
    changed: dict[str, MetadataRecord] = {**removed}
    for name, upsertion in upserted.items():
        if upsertion.salted_password:
            changed[name] = _credential(upsertion)
        else:
            # As Kafka, which fails on the empty key only when it uses it.
            errors[name] = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, None)
    results = [AlterUserScramCredentialsResult(user=name, error_message=None) for name in changed]
    results += [
        AlterUserScramCredentialsResult(user=name, error_code=error.code, error_message=error.message)
        for name, error in errors.items()
    ]
    return Decision(AlterUserScramCredentialsResponse(results=results), list(changed.values()))


def _changed_twice() -> ApiError:
    return ApiError(ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")


def _user_problem(name: str, mechanism: int) -> ApiError | None:
    if name == "":
        return ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    return None if mechanism in SCRAM_MECHANISMS else _unknown_mechanism()


def _deletion_problem(image: Image, deletion: ScramCredentialDeletion) -> ApiError | None:
    problem = _user_problem(deletion.name, deletion.mechanism)
    if problem is None and (deletion.name, deletion.mechanism) not in image.scram:
        words = "Attempt to delete a user credential that does not exist"
        problem = ApiError(ErrorCode.RESOURCE_NOT_FOUND, words)
    return problem


def _unknown_mechanism() -> ApiError:
    return ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")


def _upsertion_problem(upsertion: ScramCredentialUpsertion) -> ApiError | None:
    problem = _user_problem(upsertion.name, upsertion.mechanism)
    if problem is not None:
        return problem
    mechanism = SCRAM_MECHANISMS[upsertion.mechanism]
    if not mechanism.iterations_min <= upsertion.iterations <= mechanism.iterations_max:
        words = "Too few iterations" if upsertion.iterations < mechanism.iterations_min else "Too many iterations"
        return ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, words)
    return None


def _credential(upsertion: ScramCredentialUpsertion) -> UserScramCredentialRecord:
    """What the server keeps: enough to check a client, not enough to be one."""
    hash_name = SCRAM_MECHANISMS[upsertion.mechanism].hash_name
    client_key = hmac.digest(upsertion.salted_password, b"Client Key", hash_name)
    return UserScramCredentialRecord(
        name=upsertion.name,
        mechanism=upsertion.mechanism,
        salt=bytes(upsertion.salt),
        stored_key=hashlib.new(hash_name, client_key).digest(),
        server_key=hmac.digest(upsertion.salted_password, b"Server Key", hash_name),
        iterations=upsertion.iterations,
    )


def describe_scram(image: Image, request: DescribeUserScramCredentialsRequest) -> DescribeUserScramCredentialsResponse:
    """Mechanisms and iterations of the users asked for, or of all."""
    by_user: dict[str, list[CredentialInfo]] = {}
    for (name, mechanism), credential in image.scram.items():
        info = CredentialInfo(mechanism=mechanism, iterations=credential.iterations)
        by_user.setdefault(name, []).append(info)
    asked = Counter(user.name for user in request.users) if request.users else Counter(list(by_user))
    response = DescribeUserScramCredentialsResponse(error_message="")
    for name, count in asked.items():
        result = DescribeUserScramCredentialsResult(user=name, error_message="")
        if count > 1:
            result.error_code = ErrorCode.DUPLICATE_RESOURCE
            result.error_message = (
                f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
            )
        elif name not in by_user:
            result.error_code = ErrorCode.RESOURCE_NOT_FOUND
            result.error_message = f"Attempt to describe a user credential that does not exist: {name}"
        else:
            result.credential_infos = by_user[name]
        response.results.append(result)
    return response


def describe_acls_without_authorizer() -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER)


def create_acls_without_authorizer(request: CreateAclsRequest) -> CreateAclsResponse:
    code = ErrorCode.SECURITY_DISABLED
    return CreateAclsResponse(
        results=[AclCreationResult(error_code=code, error_message=_NO_AUTHORIZER) for _ in request.creations]
    )


def delete_acls_without_authorizer(request: DeleteAclsRequest) -> DeleteAclsResponse:
    code = ErrorCode.SECURITY_DISABLED
    return DeleteAclsResponse(
        filter_results=[DeleteAclsFilterResult(error_code=code, error_message=_NO_AUTHORIZER) for _ in request.filters]
    )
