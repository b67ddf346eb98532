"""The memory of a broker: one budget, `headrace.memory.max`, and who has which share of it.

Each share has its own rule for what happens at its end, where it is kept: who waits, who is refused, what is forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from headrace.cluster.broker_config import BrokerConfig

_REQUESTS = Fraction(1, 4)
_SPARES = _REQUESTS / 8
_ANSWERS = Fraction(1, 4)
_MEMBERS = Fraction(1, 8)
_PRODUCERS = Fraction(1, 8)
_SESSIONS = Fraction(1, 8)
_CLIENT_METRICS = Fraction(1, 16)
_KEPT_ANSWERS = Fraction(1, 128)


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """In bytes, over all connections. What is left is for the process itself, and for what is being unpacked."""

    #: Requests under way (`queued.max.request.bytes`), and buffers that are kept for the next ones.
    requests: int
    spares: int
    #: Answers that clients have not read yet.
    answers: int
    #: What members tell of themselves and are assigned.
    members: int
    #: What partitions remember of producers.
    producers: int
    #: What fetch sessions remember of partitions.
    sessions: int
    #: What clients push of their metrics.
    client_metrics: int
    #: Answers that are given again to equal requests.
    kept_answers: int

    @classmethod
    def of(cls, config: BrokerConfig) -> MemoryBudget:
        whole, given = config.get_int("headrace.memory.max"), config.get_int("queued.max.request.bytes")
        requests = given if given > 0 else int(whole * _REQUESTS)
        return cls(
            requests=requests,
            spares=int(requests * _SPARES / _REQUESTS),
            answers=int(whole * _ANSWERS),
            members=int(whole * _MEMBERS),
            producers=int(whole * _PRODUCERS),
            sessions=int(whole * _SESSIONS),
            client_metrics=int(whole * _CLIENT_METRICS),
            kept_answers=int(whole * _KEPT_ANSWERS),
        )
