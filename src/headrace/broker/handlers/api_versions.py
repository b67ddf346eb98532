"""ApiVersions (key 18): what this broker speaks.

Serves versions 0-4. A request of a newer version is answered in version 0 with UNSUPPORTED_VERSION and the range of
ApiVersions itself, so that any client can step down. From version 3 on the client's name and version are checked.
Below version 4, features that may be at level 0 are not told: Java's clients up to 3.8 fail on them (KAFKA-17492).
A broker that means another life of this one is refused (STALE_BROKER_EPOCH).
"""

from __future__ import annotations

import re
from functools import cache

from headrace.broker.requests.dispatch import RequestContext, handles, load_handlers
from headrace.broker.requests.rights import NOTHING
from headrace.broker.view import ClusterView
from headrace.cluster.features import SUPPORTED_FEATURES
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from headrace.protocol.schema import ZERO_UUID

VERSION_MAX = 4
FEATURES_FROM_ZERO_VERSION = 4
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@handles(ApiKey.API_VERSIONS, versions=(0, VERSION_MAX), requires=NOTHING)
def api_versions(request: ApiVersionsRequest, context: RequestContext, cluster: ClusterView) -> ApiVersionsResponse:
    if not 0 <= context.api_version <= VERSION_MAX:
        own = ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=0, max_version=VERSION_MAX)
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own])
    if context.api_version >= 3 and not (
        _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    if request.receiver not in (ZERO_UUID, cluster.incarnation):
        # Another broker means a former life of this one, or the one that has its number by now.
        return ApiVersionsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    context.connection.software = request.client_software_name, request.client_software_version
    login = context.connection.login
    if login is not None and context.rights is None:
        login.versions_told()
    # Brokers ask before they log in.
    response = ApiVersionsResponse(api_keys=served_apis(context.says_broker))
    response.supported_features = [
        SupportedFeatureKey(name=name, min_version=low, max_version=high)
        for name, (low, high) in SUPPORTED_FEATURES.items()
        if low > 0 or context.api_version >= FEATURES_FROM_ZERO_VERSION
    ]
    response.finalized_features_epoch = cluster.image.offset - 1
    response.finalized_features = [
        FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
        for name, level in cluster.image.features.items()
    ]
    return response


@cache
def served_apis(to_brokers: bool) -> list[ApiVersion]:
    """What there is to ask for. Every connection begins with that question: nobody changes the list."""
    return [
        ApiVersion(api_key=handler.api_key, min_version=handler.advertised_low, max_version=handler.high)
        for handler in load_handlers().values()
        if to_brokers or not handler.between_brokers
    ]
