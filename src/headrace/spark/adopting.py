"""Queries that an earlier version of the exactly-once sink wrote, whose transactional ids named the topics.

Such a query keeps its old id, whatever its topics are now: it goes on behind its last marker, and an old driver that
still runs is fenced, or finds what was written since.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from headrace.spark.history import DEFAULT_SINK, SinkIdentity
from headrace.spark.once import WrongHistoryError
from headrace.spark.options import GROUP_PREFIX

log = logging.getLogger("headrace.spark")


def name_of(identity: SinkIdentity, topics: Sequence[str], known: Collection[str], *, is_job: bool = False) -> str:
    """The transactional id of a sink, which is its marker's key too. `known`: those that there are markers of.

    The id of now, if it has one; else an old one: with these topics, or the only one that the query has. An old id that
    another job may have had as well is refused for a job, which is written once for all.
    """
    if identity.transactional_id in known:
        return identity.transactional_id
    found = identity.earlier_id(topics)
    if found not in known:
        # Ids of queries are Spark's own: no other query's begins in the same way.
        others = identity.is_sparks and identity.sink == DEFAULT_SINK
        old = sorted(name for name in known if others and name.startswith(identity.earlier_prefix))
        if not old:
            return identity.transactional_id
        if len(old) > 1:
            raise WrongHistoryError(
                f"an earlier version wrote query {identity.query} as {' and '.join(old)}, of which none has the topics "
                f"{', '.join(sorted(topics))}: which of them this sink goes on with cannot be told. Start it once with "
                "the topics that it had, then change them"
            )
        found = old[0]
    if is_job and found.removeprefix(f"{GROUP_PREFIX}-batch-").count("-") > 1:
        raise WrongHistoryError(
            f"an earlier version wrote a job as {found}: that may have been this one, or another whose name and topics "
            "read the same when they are joined. If it was this one, it is written, and need not be run; if not, give "
            "this one another name"
        )
    log.info("query %s goes on as %s, which an earlier version began", identity.query, found)
    return found
