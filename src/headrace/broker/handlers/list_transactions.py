"""ListTransactions (key 66): the transactional ids that this broker coordinates.

Serves versions 0-2. 1 filters by duration, 2 by pattern, which may take long: others have their turn meanwhile.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from headrace.broker.requests.dispatch import Pending, RequestContext, handles, settled
from headrace.broker.requests.rights import Operation, on_transactional_ids
from headrace.coordination.patterns import InvalidPatternError, Pattern
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(
    ApiKey.LIST_TRANSACTIONS, versions=(0, 2), requires=(on_transactional_ids(Operation.DESCRIBE, conditional=True),)
)
def list_transactions(broker: Broker, context: RequestContext, request: ListTransactionsRequest) -> Any:
    coordinator = broker.transactions.coordinator
    if not request.transactional_id_pattern:
        return broker.transactions.call(coordinator.list_transactions, context, request)
    try:
        pattern = Pattern(request.transactional_id_pattern)
    except InvalidPatternError:
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    return Pending(_list_matching(broker, context, request, pattern))


async def _list_matching(
    broker: Broker, context: RequestContext, request: ListTransactionsRequest, pattern: Pattern
) -> Any:
    matching = await broker.transactions.ids_matching(pattern)
    found = functools.partial(broker.transactions.coordinator.list_transactions, matching=matching)
    return await settled(broker.transactions.call(found, context, request))
