"""How does a coordinator decide? What coordinators have in common, whatever it is that they keep.

A coordinator's state is the records of an internal topic. It is pure: a call takes the state, a request and the time,
and gives an `Outcome`: records to write, replies, timers. What it decided counts once its records are written.
"""

from headrace.coordination.coordinator import Coordinator as Coordinator
from headrace.coordination.outcome import Effect as Effect
from headrace.coordination.outcome import Job as Job
from headrace.coordination.outcome import Outcome as Outcome
from headrace.coordination.outcome import Timer as Timer
from headrace.coordination.outcome import TimerChange as TimerChange
from headrace.coordination.outcome import error_after_failed_write as error_after_failed_write
from headrace.coordination.shards import LoadReport as LoadReport
from headrace.coordination.shards import Shard as Shard
from headrace.coordination.shards import Shards as Shards
from headrace.coordination.values import BATCH_OVERHEAD_BYTES as BATCH_OVERHEAD_BYTES
from headrace.coordination.values import NO_PRODUCER_ID as NO_PRODUCER_ID
from headrace.coordination.values import STORED_TEXT_BYTES_MAX as STORED_TEXT_BYTES_MAX
from headrace.coordination.values import Caller as Caller
from headrace.coordination.values import CoordinatorRecord as CoordinatorRecord
from headrace.coordination.values import Now as Now
from headrace.coordination.values import Reply as Reply
from headrace.coordination.values import StoredRecord as StoredRecord
from headrace.coordination.values import is_storable as is_storable
from headrace.coordination.values import record_bytes as record_bytes
from headrace.coordination.values import settings as settings
