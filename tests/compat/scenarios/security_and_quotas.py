"""What is off: ACLs, SCRAM, SASL and quotas answer with the error that says so."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode
from kio.serial.errors import OutOfBoundValue

from ..world import NONE, World
from .told import scenario

ANY_ACL = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


@scenario
def describe_acls(world: World, version: int) -> None:
    assert world.ask("describe_acls", version, **ANY_ACL).error_code == ErrorCode.security_disabled


@scenario
def create_acls(world: World, version: int) -> None:
    new = {
        "resource_type": 2,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "principal": "User:a",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    assert world.ask("create_acls", version, creations=[new]).results[0].error_code == ErrorCode.security_disabled


@scenario
def delete_acls(world: World, version: int) -> None:
    answer = world.ask("delete_acls", version, filters=[ANY_ACL])
    assert answer.filter_results[0].error_code == ErrorCode.security_disabled


@scenario
def describe_client_quotas(world: World, version: int) -> None:
    answer = world.ask("describe_client_quotas", version, components=[], strict=False)
    assert answer.error_code == NONE


@scenario
def alter_client_quotas(world: World, version: int) -> None:
    entry = {
        "entity": [{"entity_type": "client-id", "entity_name": "nobody"}],
        "ops": [{"key": "no_such_quota", "value": 1.0, "remove": False}],
    }
    answer = world.ask("alter_client_quotas", version, entries=[entry])
    assert answer.entries[0].error_code != NONE


@scenario
def create_delegation_token(world: World, version: int) -> None:
    # The times of a refusal are -1, as Apache Kafka's, which kio does not take; recordings hold them against it.
    with pytest.raises(OutOfBoundValue, match="negative timestamp"):
        world.ask("create_delegation_token", version, renewers=[], max_lifetime=-1)


@scenario
def renew_delegation_token(world: World, version: int) -> None:
    answer = world.ask("renew_delegation_token", version, hmac=b"none", renew_period=-1)
    assert answer.error_code == ErrorCode.delegation_token_auth_disabled


@scenario
def expire_delegation_token(world: World, version: int) -> None:
    answer = world.ask("expire_delegation_token", version, hmac=b"none", expiry_time_period=-1)
    assert answer.error_code == ErrorCode.delegation_token_auth_disabled


@scenario
def describe_delegation_token(world: World, version: int) -> None:
    answer = world.ask("describe_delegation_token", version, owners=None)
    assert (answer.error_code, answer.tokens) == (ErrorCode.delegation_token_auth_disabled, ())


@scenario
def describe_user_scram_credentials(world: World, version: int) -> None:
    answer = world.ask("describe_user_scram_credentials", version, users=[{"name": "nobody"}])
    assert answer.results[0].error_code == ErrorCode.resource_not_found


@scenario
def alter_user_scram_credentials(world: World, version: int) -> None:
    answer = world.ask("alter_user_scram_credentials", version, deletions=[{"name": "nobody", "mechanism": 1}])
    assert answer.results[0].error_code == ErrorCode.resource_not_found


@scenario
def sasl_handshake(world: World, version: int) -> None:
    answer = world.ask("sasl_handshake", version, mechanism="PLAIN")
    assert answer.error_code == ErrorCode.illegal_sasl_state


@scenario
def sasl_authenticate(world: World, version: int) -> None:
    answer = world.ask("sasl_authenticate", version, auth_bytes=b"\0user\0password")
    assert answer.error_code == ErrorCode.illegal_sasl_state
