"""WriteTxnMarkers (key 27): the transaction coordinator tells leaders to write commit or abort markers.

Versions 1-2, between brokers. 1 is flexible; 2 adds the transaction version.
"""

from headrace.protocol.schema import BOOL, INT8, INT16, INT32, INT64, STRING, Array, f, request, response, struct


@struct
class WritableTxnMarkerTopic:
    name: str = f(STRING)
    partition_indexes: list[int] = f(Array(INT32))


@struct
class WritableTxnMarker:
    producer_id: int = f(INT64)
    producer_epoch: int = f(INT16)
    transaction_result: bool = f(BOOL)
    topics: list[WritableTxnMarkerTopic] = f(Array(WritableTxnMarkerTopic))
    coordinator_epoch: int = f(INT32)
    transaction_version: int = f(INT8, "2+")


@request(27, "1-2", flexible=1)
class WriteTxnMarkersRequest:
    markers: list[WritableTxnMarker] = f(Array(WritableTxnMarker))


@struct
class WritableTxnMarkerPartitionResult:
    partition_index: int = f(INT32)
    error_code: int = f(INT16)


@struct
class WritableTxnMarkerTopicResult:
    name: str = f(STRING)
    partitions: list[WritableTxnMarkerPartitionResult] = f(Array(WritableTxnMarkerPartitionResult))


@struct
class WritableTxnMarkerResult:
    producer_id: int = f(INT64)
    topics: list[WritableTxnMarkerTopicResult] = f(Array(WritableTxnMarkerTopicResult))


@response(27, "1-2", flexible=1)
class WriteTxnMarkersResponse:
    markers: list[WritableTxnMarkerResult] = f(Array(WritableTxnMarkerResult))
