"""UpdateFeatures (key 57): raise or lower the finalized level of a feature.

Serves versions 0-2.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from headrace.broker.dispatch import RequestContext, handles
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(ApiKey.UPDATE_FEATURES, versions=(0, 2))
def update_features(
    broker: Broker, context: RequestContext, request: UpdateFeaturesRequest
) -> Coroutine[Any, Any, UpdateFeaturesResponse]:
    return broker.decide(broker.controller.update_features, request)
