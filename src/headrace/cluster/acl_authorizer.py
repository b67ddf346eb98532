"""The authorizer of a broker: the rules of the metadata as this broker knows it, and its own settings.

Rules are taken from the image when a verdict is asked for, so that whoever has folded a change decides by it at once.
"""

from __future__ import annotations

from typing import Final

from headrace.cluster.acls import EVERYONE, Acl, Operation, Resource
from headrace.cluster.authorizer import Explanation, Rules, parse_super_users
from headrace.cluster.broker_config import BrokerConfig
from headrace.cluster.image import Image
from headrace.config import ConfigError

CLASS_KEY: Final = "authorizer.class.name"
SUPER_USERS_KEY: Final = "super.users"
ALLOW_EVERYONE_KEY: Final = "allow.everyone.if.no.acl.found"
#: The names by which Kafka's configurations ask for it; the second is that of brokers with ZooKeeper.
CLASS_NAMES: Final = (
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "kafka.security.authorizer.AclAuthorizer",
)


def is_authorized(config: BrokerConfig) -> bool:
    """Whether clients' rights are checked. A `ConfigError` for an authorizer that is not known here.

    Nobody is to believe that rights are checked where they are not.
    """
    name = str(config[CLASS_KEY] or "").strip()
    if not name:
        return False
    if name not in CLASS_NAMES:
        raise ConfigError({CLASS_KEY: f"{name} is not known here; set {CLASS_NAMES[0]}, or leave it out"})
    return True


class AclAuthorizer:
    """Decides by the ACLs of an image; an `Authorizer` of `broker.requests.access`."""

    def __init__(self, image: Image, config: BrokerConfig) -> None:
        self._image = image
        everyone = config.given.get(ALLOW_EVERYONE_KEY, "false").strip().lower()
        if everyone not in ("true", "false"):
            raise ConfigError({ALLOW_EVERYONE_KEY: f"{everyone!r} is neither true nor false"})
        super_users = parse_super_users(config.given.get(SUPER_USERS_KEY, ""))
        for one in super_users:
            if ":" not in one:
                raise ConfigError({SUPER_USERS_KEY: f"{one!r} is no principal, as User:{one} would be"})
        self._rules = Rules(super_users=super_users, allow_everyone=everyone == "true")
        self._known: dict[bytes, Acl] = {}
        self._version = 0

    @property
    def rules_version(self) -> int:
        return self._image.acls_version

    @property
    def rules(self) -> Rules:
        """All rules as they are now; not to be changed."""
        if self._version != self._image.acls_version:
            self._follow()
        return self._rules

    def _follow(self) -> None:
        records, known = self._image.acls, self._known
        for acl_id in known.keys() - records.keys():
            self._rules.remove(known.pop(acl_id))
        for acl_id in records.keys() - known.keys():
            acl = known[acl_id] = Acl.of(records[acl_id])
            self._rules.add(acl)
        self._version = self._image.acls_version

    def verdict(self, principal: str, host: str, operation: Operation, resource: Resource, name: str) -> bool:
        # Such a name is refused at login. If one came through all the same, it is nobody's.
        return principal != EVERYONE and self.rules.verdict(principal, host, operation, resource, name)

    def may_on_any(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        return principal != EVERYONE and self.rules.may_on_any(principal, host, operation, resource)

    def explain(self, principal: str, host: str, operation: Operation, resource: Resource, name: str) -> Explanation:
        return self.rules.explain(principal, host, operation, resource, name)
