"""Static members of a plain group: processes that keep their `group.instance.id` over their lives, and are now and then
started twice. And mortal ones, which die without a word."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from headrace.errors import FencedInstanceIdError
from headrace.runtime.simulated import Host, HostDiedError
from headrace.testing.simulated.history import BrokenError
from headrace.testing.simulated.workloads import MemberWorkload

#: How long after its end a process is started again: most come back before the group has given up their share.
_AWAY_S = (0.05, 0.05, 0.5, 5.0)
#: So long two that were started with one id may both think that they have it, once nothing goes wrong any more.
_FENCED_S = 60.0
_LOOK_S = 0.1


@dataclass(slots=True)
class _Life:
    """One process."""

    host: Host
    task: asyncio.Future[None]
    is_ending: bool = False


class StaticMember(MemberWorkload):
    """One place in the group. Whoever has it is closed, dies, or goes on while another is started for it."""

    async def run(self) -> None:
        calm_at = asyncio.get_running_loop().time() + self.plan.duration_s
        lives: list[_Life] = []
        while not self.is_stopping:
            life = self._begin(len(lives) + 1)
            lives.append(life)
            if await self._stays(life, calm_at):
                break
            await self._end(life)
            await self.pause(self.rng.choice(_AWAY_S) * self.plan.pace)
        await self._one_is_left(lives)
        for life in lives:
            life.is_ending = True
        for life in lives:
            await self._outcome(life)

    async def _stays(self, life: _Life, calm_at: float) -> bool:
        """Whether it is there until all is over: when the faults are, so that all comes to an end."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.rng.uniform(0.1, 0.8) * self.plan.duration_s
        while not (self.is_stopping or life.task.done()) and (loop.time() < until or loop.time() > calm_at):
            await asyncio.sleep(_LOOK_S)
        return self.is_stopping

    def _begin(self, number: int) -> _Life:
        host = self.cluster.client_host(f"{self.name}-{number}")
        config = self.config()
        config["group_instance_id"] = self.name
        made: list[_Life] = []
        made.append(_Life(host, host.start(self.consume(host, config, lambda: made[0].is_ending))))
        return made[0]

    async def _end(self, life: _Life) -> None:
        how = "" if life.task.done() else self.rng.choice(("close", "die", "twice"))
        if how == "twice":
            self.history.count("static members started twice")
            return
        if how == "close":
            life.is_ending = True
        elif how == "die":
            life.host.kill(power_loss=False)
        await self._outcome(life)

    async def _outcome(self, life: _Life) -> None:
        try:
            await life.task
            self.history.count("static members closed")
        except HostDiedError:
            self.history.count("static members died")
        except FencedInstanceIdError:
            # Another has its place; or had, by a request to join of its own that came late.
            self.history.count("static members fenced")

    async def _one_is_left(self, lives: list[_Life]) -> None:
        """Of those that have one id, all but one learn of it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _FENCED_S
        while len(left := [life for life in lives if not life.task.done()]) > 1:
            if loop.time() > deadline:
                raise BrokenError(f"{', '.join(life.host.name for life in left)} are one member of the group")
            await asyncio.sleep(_LOOK_S)


#: How long a member lives that dies: often just so long that it has asked for its share, or was given it.
_LIVES_S = (0.15, 0.3, 0.45, 0.6, 1.5)


class MortalMember(MemberWorkload):
    """A process that dies without leaving the group, and comes back as somebody else. The others have to be given its
    share, however early it died."""

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        calm_at = loop.time() + self.plan.duration_s
        lives: list[_Life] = []
        while True:
            host = self.cluster.client_host(f"{self.name}-{len(lives) + 1}")
            task = host.start(self._live(host))
            lives.append(_Life(host, task))
            dies_at = loop.time() + self.rng.choice(_LIVES_S) * self.rng.uniform(0.7, 1.3)
            # Those of the last lives stay, so that all is read in the end.
            while not (self.is_stopping or task.done()) and (loop.time() < dies_at or loop.time() > calm_at):
                await asyncio.sleep(_LOOK_S / 10)
            if not (self.is_stopping or task.done()):
                host.kill(power_loss=False)
            try:
                await task
                return
            except HostDiedError:
                self.history.count("members died")
            await self.pause(0.3)

    async def _live(self, host: Host) -> None:
        consumer = self.cluster.consumer(host=host, **self.config())
        await self.work(consumer, host, lambda: self.is_stopping)
        # Only by who comes so far: who dies closes nothing.
        await consumer.close()
