"""The clients that push metrics: what each was asked for, whether it keeps to that, and what it pushed."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from headrace.broker.telemetry.pushed import ClientMetrics, PushedMetrics
from headrace.broker.telemetry.subscriptions import ClientIdentity, MetricsSubscriptions, WantedMetrics
from headrace.errors import ErrorCode
from headrace.protocol.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsResponse
from headrace.protocol.messages.push_telemetry import PushTelemetryRequest
from headrace.protocol.schema import ZERO_UUID
from headrace.records import Codec
from headrace.records.compression import decompress
from headrace.records.errors import DecompressedTooLargeError, MalformedRecordError
from headrace.runtime import Clock

ACCEPTED_COMPRESSION: Final = (Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY)
CLIENTS_MAX: Final = 16_384
"""So many are kept track of; of more, the longest silent are forgotten, and asked to begin again."""
SILENT_INTERVALS_MAX: Final = 3
DECOMPRESSED_FACTOR: Final = 8
"""What is pushed may grow to so many times `telemetry.max.bytes`; metrics compress well, bombs better."""
_RESERVED: Final = frozenset({ZERO_UUID, b"\0" * 15 + b"\1"})

Identify = Callable[[bytes], ClientIdentity]


@dataclass(slots=True)
class _Client:
    wanted: WantedMetrics
    version: int  # of the subscriptions that this follows from
    last_get_s: float | None = None
    last_push_s: float | None = None
    last_error: ErrorCode = ErrorCode.NONE
    is_terminating: bool = False

    def is_silent(self, now_s: float) -> bool:
        last = max(self.last_get_s or 0.0, self.last_push_s or 0.0)
        return now_s - last > SILENT_INTERVALS_MAX * self.wanted.interval_ms / 1000


class TelemetryClients:
    def __init__(
        self,
        subscriptions: MetricsSubscriptions,
        pushed: ClientMetrics,
        clock: Clock,
        rng: Random,
        bytes_max: Callable[[], int],
    ) -> None:
        """`bytes_max` is `telemetry.max.bytes`, as it is now."""
        self._subscriptions = subscriptions
        self.pushed = pushed
        self._clock = clock
        self._rng = rng
        self._bytes_max = bytes_max
        self._clients: OrderedDict[bytes, _Client] = OrderedDict()

    def subscribe(self, asked: bytes, identify: Identify) -> GetTelemetrySubscriptionsResponse:
        """What a client is to push; one without an id is given its own."""
        instance = self._new_id() if asked in _RESERVED else asked
        client, now_s = self._client(instance, identify), self._clock.monotonic()
        is_early = client.last_get_s is not None and now_s - client.last_get_s < client.wanted.interval_ms / 1000
        may_ask_again = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        if is_early and client.last_error not in may_ask_again:
            return GetTelemetrySubscriptionsResponse(error_code=ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        client.last_get_s, client.last_error = now_s, ErrorCode.NONE
        return GetTelemetrySubscriptionsResponse(
            client_instance_id=instance,
            subscription_id=client.wanted.subscription_id,
            accepted_compression_types=[int(codec) for codec in ACCEPTED_COMPRESSION],
            push_interval_ms=client.wanted.interval_ms,
            telemetry_max_bytes=self._bytes_max(),
            delta_temporality=True,
            requested_metrics=list(client.wanted.metrics),
        )

    def push(self, request: PushTelemetryRequest, identify: Identify) -> ErrorCode:
        if request.client_instance_id in _RESERVED:
            return ErrorCode.INVALID_REQUEST
        client = self._client(request.client_instance_id, identify)
        client.last_error = self._push(client, request, identify)
        client.is_terminating |= request.terminating
        return client.last_error

    def _push(self, client: _Client, request: PushTelemetryRequest, identify: Identify) -> ErrorCode:
        now_s = self._clock.monotonic()
        if client.is_terminating:
            return ErrorCode.INVALID_REQUEST
        is_early = client.last_push_s is not None and now_s - client.last_push_s < client.wanted.interval_ms / 1000
        if is_early and not request.terminating:
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        client.last_push_s = now_s
        if request.subscription_id != client.wanted.subscription_id:
            return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        if request.compression_type not in (Codec.NONE, *ACCEPTED_COMPRESSION):
            return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        bytes_max = self._bytes_max()
        if len(request.metrics) > bytes_max:
            return ErrorCode.TELEMETRY_TOO_LARGE
        try:
            limit = bytes_max * DECOMPRESSED_FACTOR
            data = bytes(decompress(Codec(request.compression_type), request.metrics, limit))
        except DecompressedTooLargeError:
            return ErrorCode.TELEMETRY_TOO_LARGE
        except MalformedRecordError:
            return ErrorCode.INVALID_RECORD
        if data:
            client_identity = identify(request.client_instance_id)
            self.pushed.put(PushedMetrics(client_identity, data, self._clock.now_ms(), request.terminating))
        return ErrorCode.NONE

    def _client(self, instance: bytes, identify: Identify) -> _Client:
        version = self._subscriptions.refresh()
        self._forget_silent()
        client = self._clients.get(instance)
        if client is None or client.version != version:
            wanted = self._subscriptions.wanted_of(identify(instance))
            if client is None or client.wanted != wanted:
                client = _Client(wanted, version)
            client.version = version
            self._clients[instance] = client
        self._clients.move_to_end(instance)
        return client

    def _forget_silent(self) -> None:
        now_s = self._clock.monotonic()
        while self._clients:
            oldest = next(iter(self._clients))
            if len(self._clients) < CLIENTS_MAX and not self._clients[oldest].is_silent(now_s):
                return
            del self._clients[oldest]
            self.pushed.forget(str(uuid.UUID(bytes=oldest)))

    def _new_id(self) -> bytes:
        while True:
            made = self._rng.randbytes(16)
            if made not in _RESERVED and made not in self._clients:
                return made
