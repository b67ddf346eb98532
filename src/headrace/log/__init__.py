"""What is on disk? Segments, indexes, producer state, leader epochs, retention, recovery."""

from headrace.log.appended import Appended, UnexpectedOffsetError
from headrace.log.config import TOPIC_CONFIGS, LogConfig
from headrace.log.directories import DirectoryInfo, LogDirectories, ReplicaInfo
from headrace.log.log import Log
from headrace.log.meta_properties import DirectoryMismatch
from headrace.log.moving import Move
from headrace.log.opening import Fate, FateOf, Found
from headrace.log.producer_state import Origin, Verification
from headrace.log.reading import Slice, TimeAndOffset
from headrace.log.recovery import RecoveryReport
from headrace.log.scanning import WouldBlock
from headrace.log.segment import Caches, Segment
from headrace.log.transaction_index import AbortedTransaction
from headrace.log.validation import RecordsRejected

__all__ = [
    "TOPIC_CONFIGS",
    "AbortedTransaction",
    "Appended",
    "Caches",
    "DirectoryInfo",
    "DirectoryMismatch",
    "Fate",
    "FateOf",
    "Found",
    "Log",
    "LogConfig",
    "LogDirectories",
    "Move",
    "Origin",
    "RecordsRejected",
    "RecoveryReport",
    "ReplicaInfo",
    "Segment",
    "Slice",
    "TimeAndOffset",
    "UnexpectedOffsetError",
    "Verification",
    "WouldBlock",
]
