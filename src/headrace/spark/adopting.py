"""What an earlier version of the exactly-once sink wrote: its markers, by transactional ids that named the topics.

A query that was written by it goes on where it was. Its old transactional id is fenced first, so that nothing which an
old driver has left open, or still writes, can be committed later.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from headrace.spark.history import DEFAULT_SINK, SinkIdentity
from headrace.spark.markers import Marker
from headrace.spark.once import WrongHistory
from headrace.spark.steps import Link

log = logging.getLogger("headrace.spark")


class Earlier:
    """Looks once: what was written by an earlier version is fenced then, and changes no more."""

    def __init__(self, link: Link, identity: SinkIdentity, topics: Sequence[str]) -> None:
        self._link = link
        self._identity = identity
        self._topics = topics
        self._looked = False
        self._found: Marker | None = None

    def marker(self) -> Marker | None:
        """The last marker of an earlier version. Only for a sink that has none of this one."""
        if not self._looked:
            self._found = self._look()
            self._looked = True
        return self._found

    def _look(self) -> Marker | None:
        transaction = self._link.transaction_of(self._name())
        transaction.fence()
        found = transaction.last_marker()
        if found is not None:
            log.warning(
                "going on behind batch %d, which an earlier version wrote as %s",
                found.batch,
                transaction.transactional_id,
            )
        return found

    def _name(self) -> str:
        """The old id with the topics of now; else the only one that the query has, whatever its topics were."""
        identity = self._identity
        exact = identity.earlier_id(self._topics)
        if not identity.is_sparks or identity.sink != DEFAULT_SINK:
            return exact
        known = self._link.transaction.other_keys(identity.earlier_prefix)
        if exact in known or not known:
            return exact
        if len(known) > 1:
            raise WrongHistory(
                f"an earlier version wrote query {identity.query} with the topics of {', '.join(sorted(known))}, of "
                f"which none are {', '.join(sorted(self._topics))}: which of them this sink goes on with cannot be "
                "told. Start it once with the topics that it had, then change them"
            )
        return next(iter(known))
