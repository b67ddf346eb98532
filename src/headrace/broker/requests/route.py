"""All that is the same for every request of one API key and version."""

from __future__ import annotations

from typing import Any

from headrace.broker.requests.acts import ACTS
from headrace.broker.requests.handler import Functions, Handler
from headrace.broker.requests.kept_answers import KeptAnswers
from headrace.broker.requests.request_metrics import ApiMetrics
from headrace.protocol import codec
from headrace.protocol.api import ApiKey
from headrace.protocol.codegen import decoder
from headrace.protocol.error_finder import error_finder

THROTTLE_FIELD = "throttle_time_ms"


class Route:
    """See the module."""

    __slots__ = (
        "act",
        "api_version",
        "at_once",
        "consumes",
        "decode",
        "each_once",
        "encode",
        "function",
        "handler",
        "has_tags",
        "is_async",
        "is_split",
        "keeps_frame",
        "kept",
        "metrics",
        "produces",
        "shape",
        "shares",
        "tells_error",
        "tells_throttle",
    )

    def __init__(
        self, handler: Handler, api_version: int, metrics: ApiMetrics, kept: KeptAnswers, functions: Functions
    ) -> None:
        self.handler = handler
        self.api_version = api_version
        self.metrics = metrics
        self.function, self.at_once = functions
        self.is_async = handler.is_async
        #: Whether others have their turn before the answer is encoded: what is asked for often is told at once.
        self.is_split = handler.is_async and handler.api_key not in (ApiKey.PRODUCE, ApiKey.FETCH)
        self.each_once = handler.each_once
        self.act = ACTS.get(handler.api_key)
        #: Whether quotas count the bytes of the request, or of the answer.
        self.produces = handler.api_key == ApiKey.PRODUCE
        self.consumes = handler.api_key == ApiKey.FETCH
        self.shares = handler.api_key == ApiKey.SHARE_FETCH
        #: Whether a request that waits counts with its frame: as its records are there, or by what was made of it. A
        #: fetch may wait for minutes, and remembers little of what it asked for.
        self.keeps_frame = handler.api_key is not ApiKey.FETCH
        self.kept = kept if handler.keeps_answers else None
        self.tells_error = error_finder(handler.response_class)
        self.tells_throttle = THROTTLE_FIELD in handler.response_class.__slots__  # type: ignore[attr-defined]  # made so by `schema`
        is_served = handler.low <= api_version <= handler.high
        # ApiVersions from the future: its body is not read, and the answer is the one that any client can read.
        version = api_version if is_served else 0
        self.decode = decoder(handler.request_class, version) if is_served else None
        self.has_tags = is_served and codec.has_flexible_header(handler.request_class, version)
        self.encode = codec.response_encoder(handler.response_class, version)
        self.shape: Any = handler.shape(version) if handler.shape is not None and is_served else None

    def encode_refusal(self, response: Any, correlation_id: int) -> bytes:
        """The whole answer of a request that is answered at once, but not with what it asks for."""
        if self.tells_error(response):
            self.metrics.errors += 1
        return b"".join(self.encode(response, correlation_id))
