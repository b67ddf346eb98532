"""What the broker counts about requests, per API key: how many, how large, how long, and how many were refused.

Everything is a plain number that is added to, so counting a request makes no objects. Times go into buckets by powers
of two: bucket `i` has what took less than 2**i microseconds, and at least half of that.
"""

from __future__ import annotations

from collections.abc import Sequence

# Up to four years.
BUCKETS = 48


class Times:
    """How long one part of the requests took. What took no time at all is in no bucket."""

    __slots__ = ("buckets", "total_s")

    def __init__(self) -> None:
        self.total_s = 0.0
        self.buckets = [0] * BUCKETS

    def add(self, seconds: float) -> None:
        self.total_s += seconds
        self.buckets[int(seconds * 1e6).bit_length()] += 1

    def quantile_us(self, share: float, count: int) -> int:
        """The upper end of the bucket that so large a share of `count` requests does not go beyond."""
        wanted = share * count - (count - sum(self.buckets))
        for bucket, found in enumerate(self.buckets):
            if wanted <= 0:
                return 0 if bucket == 0 else 1 << (bucket - 1)
            wanted -= found
        return 1 << (BUCKETS - 1)


class ApiMetrics:
    """The requests of one API key."""

    __slots__ = ("count", "errors", "local", "queue", "remote", "request_bytes", "response_bytes", "send", "throttled")

    def __init__(self) -> None:
        self.count = 0
        #: Answers that tell an error anywhere in them, and requests that ended in none because ours failed.
        self.errors = 0
        self.throttled = 0
        self.request_bytes = 0
        self.response_bytes = 0
        #: From when a request was read to when it was taken up: others of its connection came first.
        self.queue = Times()
        #: What the handler did on the event loop, decoding included.
        self.local = Times()
        #: What the handler waited for: a disk, other clients, time.
        self.remote = Times()
        #: From then until the kernel had all of the answer, encoding included.
        self.send = Times()

    def add_at_once(
        self, request_bytes: int, response_bytes: int, queue_s: float, local_s: float, send_s: float
    ) -> None:
        """A request that was answered without a wait: all of its numbers in one call."""
        self.count += 1
        self.request_bytes += request_bytes
        self.response_bytes += response_bytes
        local, send = self.local, self.send
        local.total_s += local_s
        local.buckets[int(local_s * 1e6).bit_length()] += 1
        send.total_s += send_s
        send.buckets[int(send_s * 1e6).bit_length()] += 1
        if queue_s > 0:
            self.queue.add(queue_s)

    def add_together(
        self, request_bytes: int, response_bytes: int, began: Sequence[float], ran: float, sent: float
    ) -> None:
        """Requests that were taken up when they came, and answered together."""
        count = len(began)
        self.count += count
        self.request_bytes += request_bytes
        self.response_bytes += response_bytes
        buckets = self.local.buckets
        for one in began:
            buckets[int((ran - one) * 1e6).bit_length()] += 1
        self.local.total_s += ran * count - sum(began)
        self.send.total_s += (sent - ran) * count
        self.send.buckets[int((sent - ran) * 1e6).bit_length()] += count
