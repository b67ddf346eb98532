"""UpdateFeatures (key 57): finalize other levels of the cluster's features.

Versions 0-2, all flexible. 1 replaces `allow_downgrade` by an upgrade type, and can only check; 2 answers no result
per feature.
"""

from headrace.protocol.schema import BOOL, INT8, INT16, INT32, STRING, Array, f, request, response, struct


@struct
class FeatureUpdateKey:
    feature: str = f(STRING)
    max_version_level: int = f(INT16)
    allow_downgrade: bool = f(BOOL, "0")
    upgrade_type: int = f(INT8, "1+", default=1)


@request(57, "0-2", flexible=0)
class UpdateFeaturesRequest:
    timeout_ms: int = f(INT32, default=60000)
    feature_updates: list[FeatureUpdateKey] = f(Array(FeatureUpdateKey))
    validate_only: bool = f(BOOL, "1+")


@struct
class UpdatableFeatureResult:
    feature: str = f(STRING)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+")


@response(57, "0-2", flexible=0)
class UpdateFeaturesResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+")
    results: list[UpdatableFeatureResult] = f(Array(UpdatableFeatureResult), "0-1")
