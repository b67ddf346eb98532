"""Courses of faults that show one mistake that is put in on purpose; no seed draws them.

Were they among those that seeds draw, each seed would have another plan than before.
"""

from __future__ import annotations

from headrace.testing.simulated.scenarios import OFFSETS, Scenario, Step

#: Those that lead in turns have a slow disk: what they are asked to write is written in another's epoch.
QUEUED_AT_LEADERS = Scenario(
    (
        Step("slow disk", "leader", for_s=(4.0, 5.0)),
        Step("election", "second", (0.5, 0.9)),
        Step("election", "leader", (1.4, 1.8)),
        Step("election", "second", (2.2, 2.6)),
        Step("election", "third", (3.0, 3.4)),
    ),
    leader="any",
)
#: Clients find the next coordinator, as their connections break to one that does not answer; then those that coordinate
#: by now are away, so that clients ask the former one.
_ASKED_AGAIN = (
    Step("reset", "leader", (1.5, 1.8), level=(0.34, 0.65)),
    Step("reset", "leader", (2.0, 2.2), level=(0.34, 0.65)),
    Step("kill", "second", (3.8, 4.2), (1.5, 2.0)),
    Step("kill", "third", (3.8, 4.2), (1.5, 2.0)),
)
_CUT = (Step("store cut", "leader", for_s=(6.0, 6.5)), Step("client cut", "leader", for_s=(3.6, 3.8)))
A_FORMER_COORDINATOR = Scenario((*_CUT, *_ASKED_AGAIN), about=OFFSETS, leader="any")
A_PAUSED_COORDINATOR = Scenario((Step("pause", "leader", for_s=(4.3, 4.8)), *_ASKED_AGAIN), about=OFFSETS, leader="any")
