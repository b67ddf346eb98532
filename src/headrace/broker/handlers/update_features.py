"""UpdateFeatures (key 57): raise or lower the finalized level of a feature.

Serves versions 0-2.
"""

from __future__ import annotations

from headrace.broker.metadata.service import MetadataService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse


@handles(ApiKey.UPDATE_FEATURES, versions=(0, 2), requires=(on_cluster(Operation.ALTER),))
async def update_features(
    request: UpdateFeaturesRequest, context: RequestContext, metadata: MetadataService
) -> UpdateFeaturesResponse:
    return await metadata.decide(metadata.controller.update_features, request, context=context)
