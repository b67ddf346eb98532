"""What is on disk? Segments, indexes, producer state, leader epochs, retention, recovery.

One writer changes a log, whichever thread that is at the moment; everyone else has an immutable view of it, which is
published in one assignment. Who owns what is said in `LogState`, and checked by `ownership.py` in tests.
"""

from headrace.log.appended import Appended, Outcome, UnexpectedOffsetError, as_far_as, only
from headrace.log.config import TOPIC_CONFIGS, LogConfig
from headrace.log.directories import LogDirectories
from headrace.log.directory import LogCut
from headrace.log.directory_info import DirectoryInfo, LogInfo
from headrace.log.log import Log
from headrace.log.meta_properties import DirectoryMismatchError
from headrace.log.moving import Move
from headrace.log.opening import FateOf, FoundLog, LogFate
from headrace.log.producer_state import UNVERIFIED, Origin, Verification
from headrace.log.reading import Slice, TimeAndOffset
from headrace.log.recovery import RecoveryReport
from headrace.log.scanning import WouldBlockError
from headrace.log.segment import Caches, Segment
from headrace.log.transaction_index import AbortedTransaction
from headrace.log.validation import (
    Checked,
    RecordsRejectedError,
    TakesLongError,
)

__all__ = [
    "TOPIC_CONFIGS",
    "UNVERIFIED",
    "AbortedTransaction",
    "Appended",
    "Caches",
    "Checked",
    "DirectoryInfo",
    "DirectoryMismatchError",
    "FateOf",
    "FoundLog",
    "Log",
    "LogConfig",
    "LogCut",
    "LogDirectories",
    "LogFate",
    "LogInfo",
    "Move",
    "Origin",
    "Outcome",
    "RecordsRejectedError",
    "RecoveryReport",
    "Segment",
    "Slice",
    "TakesLongError",
    "TimeAndOffset",
    "UnexpectedOffsetError",
    "Verification",
    "WouldBlockError",
    "as_far_as",
    "only",
]
