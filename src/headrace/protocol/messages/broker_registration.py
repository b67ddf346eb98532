"""BrokerRegistration (key 62): a broker tells the controller of itself, and is given its epoch.

Versions 0-4, between brokers, all flexible. 1 says whether it comes from ZooKeeper's mode; 2 adds its log directories;
3 the epoch that its data is from; 4 allows features from level 0 on.
"""

from headrace.protocol.schema import (
    BOOL,
    INT16,
    INT32,
    INT64,
    STRING,
    UINT16,
    UUID,
    Array,
    f,
    request,
    response,
    struct,
)


@struct
class Listener:
    name: str = f(STRING)
    host: str = f(STRING)
    port: int = f(UINT16)
    security_protocol: int = f(INT16)


@struct
class Feature:
    name: str = f(STRING)
    min_supported_version: int = f(INT16)
    max_supported_version: int = f(INT16)


@request(62, "0-4", flexible=0)
class BrokerRegistrationRequest:
    broker_id: int = f(INT32)
    cluster_id: str = f(STRING)
    incarnation_id: bytes = f(UUID)
    listeners: list[Listener] = f(Array(Listener))
    features: list[Feature] = f(Array(Feature))
    rack: str | None = f(STRING, nullable="0+")
    is_migrating_zk_broker: bool = f(BOOL, "1+")
    log_dirs: list[bytes] = f(Array(UUID), "2+")
    previous_broker_epoch: int = f(INT64, "3+", default=-1)


@response(62, "0-4", flexible=0)
class BrokerRegistrationResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16)
    broker_epoch: int = f(INT64, default=-1)
