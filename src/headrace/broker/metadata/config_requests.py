"""Changes of configuration as a client asks for them: a broker takes those of its own and of nobody else.

The controller decides, wherever it is; it does not know which broker the client asked, so that is checked before, and
so is whether the listeners of this broker could go on with it: their files are here.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, TypeVar

from headrace.broker.metadata.service import MetadataService
from headrace.broker.requests.dispatch import RequestContext
from headrace.broker.security.setup import BrokerSecurity
from headrace.broker.view import ClusterView
from headrace.cluster.config_changes import broker_name_error
from headrace.cluster.decision import NO_ERROR, Decision
from headrace.cluster.records import ResourceType

RequestT = TypeVar("RequestT", bound=Any)
ResponseT = TypeVar("ResponseT", bound=Any)


async def alter(
    metadata: MetadataService,
    cluster: ClusterView,
    security: BrokerSecurity,
    context: RequestContext,
    request: RequestT,
    decide: Callable[..., Decision[ResponseT]],
    refused_with: Callable[..., Any],
) -> ResponseT:
    """Have the request decided but for what is about other brokers; those are refused in their places."""
    wrong = {}
    if not context.is_from_broker:
        for at, resource in enumerate(request.resources):
            if resource.resource_type == ResourceType.BROKER and resource.resource_name:
                error = broker_name_error(resource.resource_name, cluster.node_id)
                if error is NO_ERROR:
                    error = await security.problem(cluster, resource.configs)
                if error is not NO_ERROR:
                    wrong[at] = refused_with(
                        error_code=error.code,
                        error_message=error.message,
                        resource_type=resource.resource_type,
                        resource_name=resource.resource_name,
                    )
    if not wrong:
        return await metadata.decide(decide, request, context=context)
    left = [resource for at, resource in enumerate(request.resources) if at not in wrong]
    rest = copy(request)
    rest.resources = left
    response = await metadata.decide(decide, rest, context=context)
    for at, refusal in sorted(wrong.items()):
        response.responses.insert(at, refusal)
    return response
