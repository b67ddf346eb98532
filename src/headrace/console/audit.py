"""What was changed through the console, by whom, and what came of it: one line of JSON each."""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

log = logging.getLogger("headrace.console.audit")


class ChangeLog:
    """Writes to a log and, where one is named, to a file that only its owner reads."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._lock = threading.Lock()
        if file is not None:
            file.touch(mode=0o600)

    def write(self, *, cluster: str, who: str, what: str, about: dict[str, Any], error: str | None) -> None:
        """What somebody asked for, after it was done or refused."""
        line = json.dumps(
            {
                "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "cluster": cluster,
                "who": who,
                "what": what,
                **about,
                "outcome": "done" if error is None else "refused",
                **({} if error is None else {"error": error}),
            },
            ensure_ascii=True,
        )
        log.info("%s", line)
        if self._file is not None:
            with self._lock, self._file.open("a", encoding="utf-8") as out:
                out.write(line + "\n")
