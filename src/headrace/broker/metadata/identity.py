"""Which life of its number this broker is: every role is taken for a number and an incarnation, never for a number.

A number may be given to a new machine while the process that had it lives on: one that was paused, or is cut off from
the store alone. The metadata says whose it is, by the incarnation in the registration. As that comes before whatever is
decided of it, who follows the metadata in order never takes a role that is another life's:

- before this process is registered, what the metadata says of its number is about a former life;
- once another life is registered after this one, this process does nothing any more, says so and ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from headrace.broker.view import ClusterView
from headrace.errors import HeadraceError

log = logging.getLogger("headrace.broker.metadata.identity")


class ReplacedError(HeadraceError):
    """Another process has this broker's number: this one serves nobody any more."""


class Identity:
    """See the module."""

    def __init__(self, was_replaced: Callable[[str], None]) -> None:
        """`was_replaced` is called when another process has the number, with the reason."""
        self._cluster: ClusterView
        self._tell = was_replaced
        #: Why this process does nothing any more.
        self.replaced: str | None = None
        self.was_replaced = asyncio.Event()

    def begin(self, cluster: ClusterView) -> None:
        """The number is known from now on."""
        self._cluster = cluster

    @property
    def holds_number(self) -> bool:
        """Whether what the metadata says of this broker's number is about this process."""
        cluster = self._cluster
        known = cluster.image.brokers.get(cluster.node_id)
        return self.replaced is None and known is not None and known.incarnation_id == cluster.incarnation

    def is_this(self, node_id: int) -> bool:
        """Whether the broker that the metadata names so is this one, and not another life of its number."""
        return node_id == self._cluster.node_id and self.holds_number

    def look(self) -> None:
        """A registration is new here, in the metadata or as this broker's own epoch: look whose the number is."""
        broker = self._cluster
        known = broker.image.brokers.get(broker.node_id)
        if known is None or known.incarnation_id == broker.incarnation or known.epoch < broker.broker_epoch:
            return
        if broker.broker_epoch >= 0:
            self.give_up(f"another broker is registered under the number {broker.node_id}, in epoch {known.epoch}")

    def give_up(self, reason: str) -> None:
        """Another process has the number: refuse whatever is asked of this one from now on, and let it end."""
        if self.replaced is not None:
            return
        self.replaced = (
            f"broker {self._cluster.node_id} of epoch {self._cluster.broker_epoch} was replaced: {reason}. If both "
            "are to run, give one of them another node.id"
        )
        log.error("%s; this process serves nobody any more, and ends", self.replaced)
        self._tell(self.replaced)
        self.was_replaced.set()
