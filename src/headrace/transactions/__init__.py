"""Who may write what, all or nothing? Transactions over many partitions, as a pure state machine over records."""

from headrace.coordination import Caller as Caller
from headrace.coordination import CoordinatorRecord as CoordinatorRecord
from headrace.coordination import Now as Now
from headrace.coordination import Reply as Reply
from headrace.coordination import StoredRecord as StoredRecord
from headrace.coordination import Timer as Timer
from headrace.coordination import TimerChange as TimerChange
from headrace.transactions.answers import ADD_VERSION as ADD_VERSION
from headrace.transactions.answers import OFFSETS_ADD_VERSION as OFFSETS_ADD_VERSION
from headrace.transactions.answers import PRODUCE_ADDS_VERSION as PRODUCE_ADDS_VERSION
from headrace.transactions.answers import QUESTIONS_MAX as QUESTIONS_MAX
from headrace.transactions.answers import between_brokers as between_brokers
from headrace.transactions.answers import errors_of as errors_of
from headrace.transactions.answers import offset_commit_error as offset_commit_error
from headrace.transactions.answers import produce_error as produce_error
from headrace.transactions.config import TransactionConfig as TransactionConfig
from headrace.transactions.coordinator import TransactionCoordinator as TransactionCoordinator
from headrace.transactions.loading import LoadReport as LoadReport
from headrace.transactions.lookup import PartitionLookup as PartitionLookup
from headrace.transactions.outcome import MarkerRequest as MarkerRequest
from headrace.transactions.outcome import Outcome as Outcome
from headrace.transactions.outcome import TimerKind as TimerKind
from headrace.transactions.state import TransactionSnapshot as TransactionSnapshot
from headrace.transactions.state import TransactionState as TransactionState
