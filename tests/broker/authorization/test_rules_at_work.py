"""Rules on a broker over time: taken back one by one, through a restart, for odd names."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Any

import pytest

from headrace import testing
from headrace.broker.authorization.checks import RightsCheck
from headrace.client.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AclResourceType,
    Admin,
    NewTopic,
)
from headrace.cluster.acl_authorizer import AclAuthorizer
from headrace.cluster.acls import Operation, Resource
from headrace.cluster.broker_config import BrokerConfig
from headrace.cluster.image import Image
from headrace.cluster.records import AccessControlEntryRecord
from headrace.errors import ErrorCode, HeadraceError, InvalidTopicError
from headrace.protocol import codec
from headrace.protocol.messages.produce import ProduceResponse

from .. import raw
from ..played import World, run

SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


def binding(user: str, permission: AclPermissionType) -> AclBinding:
    return AclBinding(AclResourceType.TOPIC, "t", f"User:{user}", AclOperation.READ, permission)


def verdicts(kafka: testing.EmbeddedBroker) -> dict[str, bool]:
    def ask(inside: object) -> dict[str, bool]:
        authorizer = kafka.broker.pipeline.access.authorizer
        assert authorizer is not None
        return {
            user: authorizer.verdict(f"User:{user}", "127.0.0.1", Operation.READ, Resource.TOPIC, "t")
            for user in ("alice", "bob", "carol")
        }

    return kafka.call(ask)


@pytest.mark.slow
def test_a_rule_that_is_taken_back_leaves_the_others_also_after_a_restart(tmp_path: Path) -> None:
    """With several rules on one resource the last one once counted as the only one (CVE-2024-27309)."""
    allow, deny = AclPermissionType.ALLOW, AclPermissionType.DENY
    rules = [binding("alice", deny), binding("*", allow), binding("bob", deny), binding("carol", allow)]
    with testing.broker(str(tmp_path), SETTINGS) as kafka, Admin(bootstrap_servers=kafka.address) as admin:
        admin.create_acls(rules).all()
        assert verdicts(kafka) == {"alice": False, "bob": False, "carol": True}
        gone = rules[2]
        admin.delete_acls(
            [AclBindingFilter(gone.resource_type, gone.resource_name, gone.principal, gone.operation)]
        ).all()
        assert verdicts(kafka) == {"alice": False, "bob": True, "carol": True}
    with testing.broker(str(tmp_path), SETTINGS) as kafka, Admin(bootstrap_servers=kafka.address) as admin:
        assert verdicts(kafka) == {"alice": False, "bob": True, "carol": True}
        admin.delete_acls([AclBindingFilter(principal="User:*")]).all()
        assert verdicts(kafka) == {"alice": False, "bob": False, "carol": True}


def test_a_user_whose_name_is_a_star_is_not_everybody() -> None:
    image = Image()
    image.acls[bytes(16)] = AccessControlEntryRecord(
        id=bytes(16), resource_type=2, resource_name="t", pattern_type=3, principal="User:*", host="*", operation=3,
        permission_type=3,
    )  # fmt: skip
    image.acls_version = 1
    authorizer = AclAuthorizer(image, BrokerConfig.parse({"log.dirs": "/x"}))
    asked = ("127.0.0.1", Operation.READ, Resource.TOPIC)
    assert authorizer.verdict("User:alice", *asked, "t")
    assert not authorizer.verdict("User:*", *asked, "t")
    assert not authorizer.may_on_any("User:*", *asked)


ODD = ["..", ".", "../up", "a/b", "/etc/x", "a\\b", "a\0b", "a\nb", "~", "$HOME", "a b", "é", "t" * 250, ""]


def test_no_name_of_a_topic_leads_out_of_the_data_directory(tmp_path: Path) -> None:
    with testing.broker(str(tmp_path / "data")) as kafka, Admin(bootstrap_servers=kafka.address) as admin:
        before = sorted(tmp_path.rglob("*"))
        for name in ODD:
            with pytest.raises((InvalidTopicError, HeadraceError, ValueError)):
                admin.create_topics([NewTopic(name, 1)]).all()
        assert {path.parent for path in set(tmp_path.rglob("*")) - set(before)} <= {tmp_path / "data"}
        assert not admin.list_topics()


@pytest.mark.usefixtures("large_segments")
@pytest.mark.parametrize("transactional_id", [None, "", "somebodys"])
def test_no_produce_gets_around_the_rules_for_transactions(transactional_id: str | None) -> None:
    """What its batches say counts, not only what the request does (CVE-2018-17196)."""

    class OnlyTopics:
        rules_version = 1

        def verdict(self, principal: str, host: str, operation: Operation, resource: Resource, name: str) -> bool:
            return resource is Resource.TOPIC

        def may_on_any(self, *asked: Any) -> bool:
            return False

    async def scenario(world: World) -> None:
        world.broker.pipeline.access.authorizer = OnlyTopics()
        world.broker.pipeline.may = RightsCheck(world.broker.cluster)
        records = raw.batch([b"v"], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        request = raw.produce_request("t", 0, records)
        request.transactional_id = transactional_id
        before = world.broker.partition("t", 0).log.end_offset
        world.send((request, 9))
        await asyncio.sleep(1)
        size = struct.unpack_from(">i", world.transport.written)[0]
        answer = codec.decode_response(ProduceResponse, 9, bytes(world.transport.written[4 : 4 + size]))[1]
        assert raw.produced(answer).error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert world.broker.partition("t", 0).log.end_offset == before

    run(scenario)
