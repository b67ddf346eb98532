"""Who asks on a connection, what they may, and what they have used: asked once, and again when the rules have changed.

An `Authorizer` decides, and `Rights` remembers what it decided for one principal and host, so a request of the common
shapes is checked with one look into a dictionary. What depends on a principal's rights and is kept (an answer, a place
to append to) is kept under `Rights.key`, which is another one after every change of the rules. Without an authorizer
everything is allowed, and all principals share one key.

A `Meter` is what quotas count for one client. As long as it has room, what the client uses is added to it; whoever has
none goes the long way (`RequestPipeline.begin`), and is told with the answer for how long it is not heard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from headrace.broker.requests.rights import CLUSTER_NAME, Operation, Resource
from headrace.protocol.api import ApiKey

#: How the client ids of brokers begin, when they ask each other: a request that says so goes no further. It is believed
#: where `Access.is_broker` holds, too.
BROKER_CLIENT_ID: Final = "__headrace_broker-"
# Whoever has not said who it is.
ANONYMOUS: Final = "User:ANONYMOUS"
# How many principals (from different hosts) are remembered, and how many verdicts for each.
RIGHTS_MAX = 10_000
VERDICTS_MAX = 10_000


class Authorizer(Protocol):
    @property
    def rules_version(self) -> int:
        """Another one whenever a verdict may be another than before."""

    def verdict(self, principal: str, host: str, operation: Operation, resource: Resource, name: str) -> bool:
        """Whether the principal ("User:alice") may do this from that host. It does not wait, and has no side effects
        but a line in a log."""

    def may_on_any(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        """Whether there can be any resource of this kind that the principal may do this to."""


class AuditedRequest(Protocol):
    """A request, as far as it is told of in the audit log."""

    @property
    def client_id(self) -> str | None: ...
    @property
    def principal(self) -> str: ...
    @property
    def client_host(self) -> str: ...
    @property
    def listener(self) -> str: ...
    @property
    def api_key(self) -> ApiKey: ...


class Audit(Protocol):
    """Hears what is refused, and what is changed."""

    def refused(self, context: AuditedRequest, operation: Operation, resource: Resource, name: str) -> None: ...
    def login_refused(self, host: str, listener: str, why: str) -> None: ...
    def changed(self, context: AuditedRequest, names: Sequence[str], *, is_done: bool) -> None: ...


class Meter(Protocol):
    """What one client (a principal, a client id, or both) has used lately."""

    def has_room(self, produced: int, consumed: int) -> bool:
        """Whether so many bytes more exceed no bound, nor has the broker's time been used up."""

    def take(self, produced: int, consumed: int, seconds: float) -> None:
        """So much was used, for which there was room; `seconds` is the broker's time."""

    def throttle_s(self, produced: int, consumed: int, seconds: float) -> float:
        """So much was used: for how long the client has to be quiet."""

    def held_back_s(self, consumed: int) -> float:
        """For how long it had to be quiet if it were given so many bytes; then it is given none."""

    @property
    def consumed_max(self) -> int | None:
        """How many bytes one answer may have."""

    @property
    def changes(self) -> ChangesMeter | None:
        """What counts the partitions that it creates and deletes."""


class ChangesMeter(Protocol):
    def throttle_ms(self) -> int:
        """For how long there are to be no more of them."""

    def take(self, partitions: int) -> None: ...


# The meter of a principal and a client id; None where no quota is set for it. It is asked again when `quotas_version`
# has changed.
MeterOf = Callable[[str, str], "Meter | None"]


# Compared with others, and nothing else.
RightsKey = tuple[int, Authorizer, str, str] | None


class Rights:
    """What one principal may do from one host."""

    __slots__ = ("_access", "_verdicts", "host", "key", "principal")

    def __init__(self, access: Access, principal: str, host: str) -> None:
        self._access = access
        self.principal = principal
        self.host = host
        self._verdicts: dict[tuple[Operation, Resource, str | None], bool] = {}
        #: What may be kept for this principal is kept under it. Ask `current_key()`.
        self.key: RightsKey = None
        self.current_key()

    def current_key(self) -> RightsKey:
        """Equal as long as every verdict is as it was; None where nobody is checked."""
        authorizer = self._access.authorizer
        if authorizer is None:
            if self.key is not None:
                self.key = None
                self._verdicts.clear()
            return None
        version = authorizer.rules_version
        key = self.key
        if key is None or key[0] != version or key[1] is not authorizer:
            self._verdicts.clear()
            key = self.key = (version, authorizer, self.principal, self.host)
        return key

    def may(self, operation: Operation, resource: Resource, name: str) -> bool:
        authorizer, key = self._access.authorizer, self.key
        is_current = key is not None and key[1] is authorizer and key[0] == authorizer.rules_version
        if not is_current and self.current_key() is None:
            return True
        wanted = (operation, resource, name)
        verdict = self._verdicts.get(wanted)
        if verdict is None:
            authorizer = self._access.authorizer
            assert authorizer is not None
            verdict = authorizer.verdict(self.principal, self.host, operation, resource, name)
            if len(self._verdicts) >= VERDICTS_MAX:
                self._verdicts.clear()
            self._verdicts[wanted] = verdict
        return verdict

    def may_on_cluster(self, operation: Operation) -> bool:
        return self.may(operation, Resource.CLUSTER, CLUSTER_NAME)

    def may_on_any(self, operation: Operation, resource: Resource) -> bool:
        """Whether there can be any resource of that kind that this may be done to."""
        if self.current_key() is None:
            return True
        # Under a name that no resource has, as names of resources are texts.
        wanted = (operation, resource, None)
        verdict = self._verdicts.get(wanted)
        if verdict is None:
            authorizer = self._access.authorizer
            assert authorizer is not None
            verdict = authorizer.may_on_any(self.principal, self.host, operation, resource)
            self._verdicts[wanted] = verdict
        return verdict


class Access:
    """What security plugs into: who is checked, and by whom."""

    def __init__(self) -> None:
        #: None: everyone may do everything.
        self.authorizer: Authorizer | None = None
        self.audit: Audit | None = None
        #: None: nothing is counted.
        self.meter_of: MeterOf | None = None
        #: Raised whenever a client's meter may be another.
        self.quotas_version = 0
        #: The listeners on which a client has to say who it is before anything else.
        self.authenticated_listeners: frozenset[str] = frozenset()
        #: The listeners that brokers use among themselves, and who they are where no authorizer decides.
        self.broker_listeners: frozenset[str] = frozenset()
        self.broker_principals: frozenset[str] = frozenset()
        #: Whether brokers show at a listener who they are, by a login or a certificate: then nobody else is one.
        self.tells_brokers: Callable[[str], bool] = lambda listener: listener in self.authenticated_listeners
        #: Whether anyone may come in who is no broker, so that it has to be looked who may act as one.
        self.has_strangers = False
        self._rights: dict[tuple[str, str], Rights] = {}

    def refused(self, context: AuditedRequest, operation: Operation, resource: Resource, name: str) -> None:
        """Something that was asked for is not allowed."""
        if self.audit is not None:
            self.audit.refused(context, operation, resource, name)

    def begin(self, listener: str, host: str) -> Rights | None:
        """Whose rights a new connection has; None until it has said who it is."""
        return None if listener in self.authenticated_listeners else self.rights(ANONYMOUS, host)

    def rights(self, principal: str, host: str) -> Rights:
        found = self._rights.get((principal, host))
        if found is None:
            if len(self._rights) >= RIGHTS_MAX:
                self._rights.clear()  # connections keep their own
            found = self._rights[principal, host] = Rights(self, principal, host)
        return found

    def is_broker(self, listener: str, rights: Rights | None) -> bool:
        """Whether another broker may be believed to ask: by where it came in, and by its principal, if it has one."""
        if rights is None:
            return False
        is_known = rights.principal != ANONYMOUS
        if not is_known and listener not in self.broker_listeners:
            return False
        if self.authorizer is not None:
            return rights.may_on_cluster(Operation.CLUSTER_ACTION)
        if is_known:
            return rights.principal in self.broker_principals
        return not self.tells_brokers(listener)
