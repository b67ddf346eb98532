"""DeleteGroups (key 42): remove empty groups with their offsets.

Serves versions 0-2. Many offsets are deleted in several steps, between which others have their turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from headrace.broker.coordinators.group_service import GroupService
from headrace.broker.requests.dispatch import Pending, RequestContext, handles, settled
from headrace.broker.requests.rights import Operation, on_groups
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse


@handles(ApiKey.DELETE_GROUPS, versions=(0, 2), requires=(on_groups(Operation.DELETE, "groups_names"),))
def delete_groups(request: DeleteGroupsRequest, context: RequestContext, groups: GroupService) -> Any:
    coordinator = groups.coordinator
    steps = coordinator.steps_of_deletion(request)
    shared = [name for name in request.groups_names if coordinator.share.is_deletable(name)]
    if shared:
        return Pending(_delete_with_states(groups, context, request, shared))
    if len(steps) == 1:
        return groups.call(coordinator.delete_groups, context, steps[0])
    return Pending(_delete_in_steps(groups, context, steps))


async def _delete_with_states(
    groups: GroupService, context: RequestContext, request: DeleteGroupsRequest, shared: Sequence[str]
) -> DeleteGroupsResponse:
    """Share groups go once nothing is kept of how far they have got."""
    refused = []
    for group_id in shared:
        partitions = groups.coordinator.share.state_partitions(group_id)
        answers = await groups.delete_states(group_id, partitions) if partitions else {}
        error = next((answer.error_code for answer in answers.values() if answer.error_code), ErrorCode.NONE)
        if error:
            refused.append(DeletableGroupResult(group_id=group_id, error_code=error))
    failed = {result.group_id for result in refused}
    request.groups_names = [name for name in request.groups_names if name not in failed]
    response = await _delete_in_steps(groups, context, groups.coordinator.steps_of_deletion(request))
    response.results += refused
    return response


async def _delete_in_steps(
    groups: GroupService, context: RequestContext, steps: Sequence[DeleteGroupsRequest]
) -> DeleteGroupsResponse:
    answers: list[Any] = []
    for step in steps:
        # None waits for the one before it to be written.
        answers.append(groups.call(groups.coordinator.delete_groups, context, step))
        await asyncio.sleep(0)
    return DeleteGroupsResponse(results=[result for answer in answers for result in (await settled(answer)).results])
