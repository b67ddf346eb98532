"""What ends a simulation, or a host in it."""

from __future__ import annotations

from headrace.errors import HeadraceError


class SimulatedCrash(BaseException):
    """The machine died in the middle of this operation. Not an Exception: no code may handle it and go on."""


class HostDiedError(HeadraceError):
    """The simulated host on which this ran was killed."""


class SimulationFailedError(HeadraceError):
    """Something in the simulation raised and nobody waited for it, or two runs of one seed differed."""


class SimulationStuckError(HeadraceError):
    """Nothing is left that could ever finish the simulation's main task, or a bound on steps or time was passed."""
