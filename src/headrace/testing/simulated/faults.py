"""A fault as it is planned: what, of whom, when and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Where brokers have their directories.
DATA: Final = "/data"
DIRECTORIES: Final = (f"{DATA}/one", f"{DATA}/two")

#: Clients that only some plans have: two producers with one transactional id; and one whose answers are often lost.
RIVALS, TRIES_AGAIN = "rivals", "tries again"


@dataclass(frozen=True, slots=True)
class Trouble:
    """One fault: when, how long, and of whom."""

    at_s: float
    for_s: float
    kind: str
    #: A broker's number; or what it is: `leader`, `second`, `third`, `leading`, `controller`; empty: a client, or the
    #: topic.
    who: str
    other: str
    #: A number below 1 that says how bad, where that makes sense.
    level: float
    #: The state to wait for, when it is time.
    when: str = ""
    #: Which faults belong together: their `leader` is the one that led when the first of them began.
    scene: int = 0
    #: The topic one partition of which it is about, and who should lead that one: `controller`, `other` or `any`.
    topic: str = ""
    leader: str = "any"

    def text(self) -> str:
        if not self.who:
            whom = self.topic or "a client"
        else:
            whom = f"broker {self.who}" if self.who.isdigit() else f"the {self.who} of {self.topic}"
        when = f", when {self.when}" if self.when else ""
        return f"{self.kind}: {whom} at {self.at_s:.2f} s for {self.for_s:.2f} s{when}"
