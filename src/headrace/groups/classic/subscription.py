"""Which topics a group's members are subscribed to, read from what they tell their leader."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.protocol.codec import decode
from headrace.protocol.schema import STRING, Array, data, f
from headrace.protocol.wire import MalformedMessageError, read_int16


@data("0")
class _SubscribedTopics:
    # Every version of a subscription begins with its topics; the rest is for the leader, and is left unread.
    topics: list[str] = f(Array(STRING))


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all of them, or None when one cannot be read: then nobody knows."""
    topics: set[str] = set()
    for subscription in subscriptions:
        if len(subscription) < 2 or read_int16(subscription, 0)[0] < 0:
            return None
        try:
            topics.update(decode(_SubscribedTopics, 0, subscription, 2).topics)
        except MalformedMessageError:
            return None
    return frozenset(topics)
