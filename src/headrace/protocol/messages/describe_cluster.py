"""DescribeCluster (key 60): the cluster's id, controller and brokers.

Versions 0-2, all flexible. 1 asks for the endpoints of brokers (1) or controllers (2); 2 can include fenced brokers.
"""

from headrace.protocol.schema import BOOL, INT8, INT16, INT32, STRING, Array, f, request, response, struct

AUTHORIZED_OPERATIONS_OMITTED = -2147483648


@request(60, "0-2", flexible=0)
class DescribeClusterRequest:
    include_cluster_authorized_operations: bool = f(BOOL)
    endpoint_type: int = f(INT8, "1+", default=1)
    include_fenced_brokers: bool = f(BOOL, "2+")


@struct
class DescribeClusterBroker:
    broker_id: int = f(INT32)
    host: str = f(STRING)
    port: int = f(INT32)
    rack: str | None = f(STRING, nullable="0+", default=None)
    is_fenced: bool = f(BOOL, "2+")


@response(60, "0-2", flexible=0)
class DescribeClusterResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+", default=None)
    endpoint_type: int = f(INT8, "1+", default=1)
    cluster_id: str = f(STRING)
    controller_id: int = f(INT32, default=-1)
    brokers: list[DescribeClusterBroker] = f(Array(DescribeClusterBroker))
    cluster_authorized_operations: int = f(INT32, default=AUTHORIZED_OPERATIONS_OMITTED)
