"""ListTransactions (key 66): the transactional ids that this broker coordinates.

Serves versions 0-2. 1 filters by duration, 2 by pattern, which may take long: others have their turn meanwhile.
"""

from __future__ import annotations

import functools
from typing import Any

from headrace.broker.coordinators.transaction_service import TransactionService
from headrace.broker.requests.dispatch import Pending, RequestContext, handles, settled
from headrace.broker.requests.rights import Operation, on_transactional_ids
from headrace.coordination.patterns import InvalidPatternError, Pattern
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse


@handles(
    ApiKey.LIST_TRANSACTIONS, versions=(0, 2), requires=(on_transactional_ids(Operation.DESCRIBE, conditional=True),)
)
def list_transactions(
    request: ListTransactionsRequest, context: RequestContext, transactions: TransactionService
) -> Any:
    coordinator = transactions.coordinator
    if not request.transactional_id_pattern:
        return transactions.call(coordinator.list_transactions, context, request)
    try:
        pattern = Pattern(request.transactional_id_pattern)
    except InvalidPatternError:
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    return Pending(_list_matching(transactions, context, request, pattern))


async def _list_matching(
    transactions: TransactionService, context: RequestContext, request: ListTransactionsRequest, pattern: Pattern
) -> Any:
    matching = await transactions.ids_matching(pattern)
    found = functools.partial(transactions.coordinator.list_transactions, matching=matching)
    return await settled(transactions.call(found, context, request))
