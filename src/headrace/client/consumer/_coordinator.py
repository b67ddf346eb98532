"""Which broker coordinates the group: found when needed, forgotten when it says it is not, or does not answer."""

from __future__ import annotations

import logging
from collections.abc import Callable

from headrace.client.cluster.coordinator import CoordinatorKind, find_coordinator, found_coordinator
from headrace.client.cluster.core import ANY_NODE, ClientCore, coordinator_key
from headrace.client.consumer.errors import say
from headrace.client.flows import Flow, Pause
from headrace.errors import GroupAuthorizationFailedError, HeadraceError, RetriableError
from headrace.net.connection import Call
from headrace.net.node import Node
from headrace.protocol.messages.find_coordinator import FindCoordinatorResponse

log = logging.getLogger("headrace.client.consumer")


class CoordinatorLink:
    """The group's coordinator, on a connection of its own: no long fetch stands before a commit."""

    def __init__(self, core: ClientCore, group_id: str, notify: Callable[[], None]) -> None:
        self.core = core
        self.group_id = group_id
        self.node: Node | None = None
        self.finds = 0
        """Counts how often it was found: who talks to it otherwise compares."""
        self._notify = notify
        self._failures = 0

    @property
    def key(self) -> int | None:
        """Where to submit requests; None while the coordinator is not known."""
        return None if self.node is None else coordinator_key(self.node.id)

    def forget(self, why: str) -> None:
        """The broker that was the coordinator is not, or cannot be asked."""
        if self.node is not None:
            log.info("the coordinator of group %s (%s) is to be found anew: %s", self.group_id, self.node, why)
            self.node = None

    def submit(self, request: object, timeout_ms: float | None = None, version_max: int | None = None) -> Call | None:
        """Send to the coordinator; None while it is not known."""
        key = self.key
        if key is None:
            return None
        return self.core.submit(key, request, lambda _: self._notify(), timeout_ms=timeout_ms, version_max=version_max)

    def find(self) -> Flow[int]:
        """Wait until the coordinator is known. Raises only what will not pass (authorization)."""
        while self.node is None:
            request = find_coordinator(CoordinatorKind.GROUP, self.group_id)
            call = yield self.core.submit(ANY_NODE, request, lambda _: self._notify())
            error = call.error or self._take(call.response)
            if error is None:
                break
            if not isinstance(error, RetriableError):
                raise error
            log.debug("finding the coordinator of group %s: %s", self.group_id, error)
            yield Pause(self.next_try())
        self._failures = 0
        assert self.node is not None
        return coordinator_key(self.node.id)

    def next_try(self) -> float:
        """When to ask again after a failure."""
        wait_ms = self.core.config.retry_backoff.wait_ms(self._failures, self.core.rng)
        self._failures = min(self._failures + 1, 30)
        return self.core.clock.monotonic() + wait_ms / 1000

    def succeeded(self) -> None:
        self._failures = 0

    def _take(self, response: FindCoordinatorResponse) -> HeadraceError | None:
        found = found_coordinator(response)
        if not isinstance(found, Node):
            return say(found, f"group {self.group_id}") if isinstance(found, GroupAuthorizationFailedError) else found
        self.node = found
        self.finds += 1
        self.core.learn_node(self.node)
        log.info("the coordinator of group %s is %s", self.group_id, self.node)
        return None
