"""A producer's side of transactions; consuming, transforming and producing exactly once (`exactly_once`); and the verbs
of a transaction that several processes write together."""

from headrace.client.transactions._requests import ProducerIdentity
from headrace.client.transactions._shared import SharedTransaction
from headrace.client.transactions._writer import RECORD_OVERHEAD_BYTES, TransactionalWriter, WriteSettings

__all__ = ["RECORD_OVERHEAD_BYTES", "ProducerIdentity", "SharedTransaction", "TransactionalWriter", "WriteSettings"]
