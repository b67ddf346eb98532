"""The process in which a broker has its logs compacted: `python -m headrace.log.cleaner_worker`.

One job a line comes in, one result a line goes out. It ends when its input does, in the middle of a job too: so it
never outlives the broker. It writes .cleaned files and nothing else.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from typing import Any

from headrace.log.compaction import CleaningFailedError, clean
from headrace.log.compaction_job import CleanJob
from headrace.records import use_fast
from headrace.runtime import DiskError, real_runtime

FAST_FROM_BYTES = 8 * 1024 * 1024
"""From this size of a log on it pays to load the compiled kernels first."""

_NICE = 10


def answer_to(line: bytes) -> dict[str, Any]:
    """Do one job and say what came of it."""
    job = CleanJob.from_json(line)
    if job.size >= FAST_FROM_BYTES:
        use_fast()
    runtime = real_runtime()
    try:
        result = clean(runtime.disk, runtime.clock, job, pause=time.sleep)
    except CleaningFailedError as error:
        return {"failed": str(error)}
    except DiskError as error:
        return {"disk": [error.operation, error.path, error.errno]}
    return {"result": result.to_json()}


def _read_input(jobs: queue.SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        jobs.put(line)
    # The broker is gone, or wants no more. Files that are half written are nobody's: it removes them when it starts.
    os._exit(0)


def main() -> None:
    # The broker's own work comes first; on an idle machine this costs nothing.
    os.nice(_NICE)
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_input, args=(jobs,), daemon=True).start()
    while True:
        answer = json.dumps(answer_to(jobs.get()))
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
