"""A mistake that is put in on purpose, and with which plans it is looked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple
from unittest import mock

from headrace.testing.simulated.plans import (
    SHORT_PACE,
    Plan,
    plan_for,
    with_client_pause,
    with_more_partitions,
    with_other_clocks,
    with_other_configs,
)
from headrace.testing.simulated.scenarios import SCENARIOS, Scenario


class Mutation(NamedTuple):
    name: str
    #: What it was in Kafka, or which promise it breaks.
    known_as: str
    #: What to put in the place of what.
    patches: tuple[tuple[Any, str, Any], ...]
    #: Another rule, which would hide the mistake, is put out as well: also where a seed is played without the mistake.
    hidden_by: tuple[tuple[Any, str, Any], ...] = ()
    #: Which faults the seeds have: of these kinds, or the course of that name; and which clients among others.
    kinds: tuple[str, ...] = ()
    scenario: str = ""
    #: A course that no other plan has.
    course: Scenario | None = None
    clients: tuple[str, ...] = ("crowd",)
    #: Of which kind parallel consumers are; else as the seed says.
    parallel: str = ""
    #: Whether a member of a group hangs, beside those faults, for longer than the group waits for it.
    hangs: bool = False
    #: Whether topics are given more partitions, and whether members of the plain group are static ones.
    grows: bool = False
    is_static: bool = False
    #: Whether topics are configured anew.
    configures: bool = False
    #: Whether clocks of machines differ.
    has_clocks: bool = False
    #: So many seeds are tried, counted from 0.
    seeds: int = 40
    #: Short plans, unless it takes a long one.
    pace: float = SHORT_PACE
    #: Whether it is found soon enough for the suite; the others are left to the command.
    is_quick: bool = False

    def plan(self, seed: int) -> Plan:
        own = {} if self.course is None else {self.name: self.course}
        courses = [*own] or ([self.scenario] if self.scenario else None)
        with mock.patch.dict(SCENARIOS, own):
            plan = plan_for(seed, only=self.kinds, always=self.clients, scenarios=courses, pace=self.pace)
        plan = replace(plan, parallel=self.parallel or plan.parallel, is_static=self.is_static)
        plan = with_more_partitions(plan) if self.grows else plan
        plan = with_other_configs(plan) if self.configures else plan
        plan = with_other_clocks(plan) if self.has_clocks else plan
        return with_client_pause(plan) if self.hangs else plan


def parallel_mistake(
    name: str,
    promise: str,
    parallel: str,
    *patches: tuple[Any, str, Any],
    kinds: tuple[str, ...] = ("kill",),
    hangs: bool = False,
    is_quick: bool = False,
) -> Mutation:
    """One that is looked for with parallel consumers of that kind, under these faults."""
    clients = ("parallel",)
    return Mutation(
        name, promise, patches, kinds=kinds, clients=clients, parallel=parallel, hangs=hangs, is_quick=is_quick
    )
