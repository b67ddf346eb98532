"""ApiVersions (key 18): which requests and versions the broker serves, and which features it has.

Versions 0-4. 1 adds the throttle time; 2 answers before it throttles; 3 is flexible, and adds the client's software
and the features (in tagged fields); 4 allows a feature whose lowest version is 0. The response's header never has
tagged fields, and a request of an unknown version is answered in version 0, so that a client can find out what to
speak.

`receiver` is our own, under a tag far above Kafka's, and skipped by whoever does not know it: brokers name the life of
the broker that they mean (16 zeros: whoever answers).
"""

from typing import Final

from headrace.protocol.schema import BOOL, INT16, INT32, INT64, STRING, UUID, Array, f, request, response, struct

#: Tags from here on are not Kafka's.
OWN_TAGS: Final = 10_000


@request(18, "0-4", flexible=3)
class ApiVersionsRequest:
    client_software_name: str = f(STRING, "3+")
    client_software_version: str = f(STRING, "3+")
    receiver: bytes = f(UUID, "3+", tag=OWN_TAGS)


@struct
class ApiVersion:
    api_key: int = f(INT16)
    min_version: int = f(INT16)
    max_version: int = f(INT16)


@struct
class SupportedFeatureKey:
    name: str = f(STRING)
    min_version: int = f(INT16)
    max_version: int = f(INT16)


@struct
class FinalizedFeatureKey:
    name: str = f(STRING)
    max_version_level: int = f(INT16)
    min_version_level: int = f(INT16)


@response(18, "0-4", flexible=3)
class ApiVersionsResponse:
    error_code: int = f(INT16)
    api_keys: list[ApiVersion] = f(Array(ApiVersion))
    throttle_time_ms: int = f(INT32, "1+")
    supported_features: list[SupportedFeatureKey] = f(Array(SupportedFeatureKey), "3+", tag=0)
    finalized_features_epoch: int = f(INT64, "3+", default=-1, tag=1)
    finalized_features: list[FinalizedFeatureKey] = f(Array(FinalizedFeatureKey), "3+", tag=2)
    zk_migration_ready: bool = f(BOOL, "3+", tag=3)
