"""What members say of records: checked as a whole per partition, and answered once it is stored."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Final

from headrace.broker.requests.dispatch import RequestContext
from headrace.broker.requests.rights import Operation, Resource
from headrace.broker.share_groups.service import ShareGroupService
from headrace.broker.share_groups.sessions import PartitionKey, SessionKey
from headrace.broker.view import ClusterView
from headrace.errors import ErrorCode
from headrace.groups.share.deliveries import AckBatch, AckType, NotAcknowledged

#: Java's clients have ids of 22 characters.
MEMBER_ID_LENGTH_MAX: Final = 36
_RENEW_SINCE_VERSION: Final = 2


def check_member(shares: ShareGroupService, group_id: str | None, member_id: str | None) -> ErrorCode:
    """Whether a request can be one of a member at all. Who is a member, only the coordinator of the group knows."""
    if not shares.is_enabled:
        return ErrorCode.UNSUPPORTED_VERSION
    if group_id is None or not member_id or len(member_id) > MEMBER_ID_LENGTH_MAX:
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


class Acknowledging:
    """What one request says of the records of some partitions."""

    def __init__(
        self,
        shares: ShareGroupService,
        cluster: ClusterView,
        context: RequestContext,
        session: SessionKey,
        is_renewing: bool,
    ) -> None:
        self._shares = shares
        self._cluster = cluster
        self._context = context
        self._group_id, self._member_id = session
        self._is_renewing = is_renewing and context.api_version >= _RENEW_SINCE_VERSION
        self._results: dict[PartitionKey, NotAcknowledged | Awaitable[ErrorCode]] = {}

    def take(self, key: PartitionKey, batches: Sequence[Any]) -> None:
        """What is said of one partition takes effect from now on."""
        topic = self._cluster.topic_name(key[0])
        if topic is None:
            self._results[key] = NotAcknowledged(ErrorCode.UNKNOWN_TOPIC_ID)
        elif any(self._is_wrong(kind) for batch in batches for kind in batch.acknowledge_types):
            self._results[key] = NotAcknowledged(ErrorCode.INVALID_REQUEST)
        elif not self._context.is_allowed(Operation.READ, Resource.TOPIC, topic):
            self._results[key] = NotAcknowledged(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        elif batches:
            self._results[key] = self._acknowledge(topic, key, batches)

    def _is_wrong(self, kind: int) -> bool:
        return kind == AckType.RENEW and not self._is_renewing

    def _acknowledge(
        self, topic: str, key: PartitionKey, batches: Sequence[Any]
    ) -> NotAcknowledged | Awaitable[ErrorCode]:
        share = self._shares.find(self._group_id, key)
        if share is None:
            return NotAcknowledged(self._shares.why_not_found(topic, key[1]))
        said = [AckBatch(batch.first_offset, batch.last_offset, batch.acknowledge_types) for batch in batches]
        return share.acknowledge(self._member_id, said)

    async def finish(self) -> dict[PartitionKey, NotAcknowledged]:
        """What became of it, once all of it is stored; NONE where it is."""
        return {
            key: result if isinstance(result, NotAcknowledged) else NotAcknowledged(await result)
            for key, result in self._results.items()
        }
