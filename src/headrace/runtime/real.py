"""The real runtime: this machine's clock, randomness, disk, network and threads."""

from __future__ import annotations

import random
import time

from headrace.runtime.descriptors import free_count
from headrace.runtime.interface import Runtime
from headrace.runtime.real_disk import RealDisk
from headrace.runtime.real_network import RealNetwork
from headrace.runtime.system import boottime
from headrace.runtime.threads import ThreadWorkers


class RealClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # Read several times for each request: without a frame of its own it costs a third.
    monotonic = staticmethod(time.monotonic)
    boottime = staticmethod(boottime)


def real_runtime(io_threads: int = 8, seed: int | None = None, *, syncs: bool = True) -> Runtime:
    """Reality. With a `seed` the random choices repeat, which is for tests only: ids and nonces become guessable.

    Without `syncs` nothing is waited for to be on disk, which is for data that is thrown away.
    """
    return Runtime(
        clock=RealClock(),
        rng=random.SystemRandom() if seed is None else random.Random(seed),
        disk=RealDisk(syncs=syncs),
        network=RealNetwork(),
        workers=ThreadWorkers(io_threads),
        descriptors=free_count(),
        cpu=time.thread_time,
    )
