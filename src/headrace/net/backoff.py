"""How long to wait before the next try: exponential, with jitter, so that many clients do not come back at once."""

from __future__ import annotations

import random
from dataclasses import dataclass

_JITTER = 0.2
_EXPONENT_MAX = 62


@dataclass(frozen=True, slots=True)
class Backoff:
    """`first_ms`, doubled with every failure, ±20 %, never over `max_ms`. Without room to grow it is fixed."""

    first_ms: int
    max_ms: int

    def wait_ms(self, failures: int, rng: random.Random) -> float:
        """The wait after that many failures in a row (0: before the first retry)."""
        if self.max_ms <= self.first_ms:
            return float(self.max_ms)
        grown = min(self.first_ms * 2 ** min(failures, _EXPONENT_MAX), self.max_ms)
        return float(min(grown * rng.uniform(1 - _JITTER, 1 + _JITTER), self.max_ms))
