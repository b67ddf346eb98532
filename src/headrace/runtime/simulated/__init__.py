"""The simulated runtime: a cluster in one process, where a seed decides time, order, network, disk and crashes."""

from headrace.runtime.simulated.clock import EPOCH_MS, SimulatedClock
from headrace.runtime.simulated.disk import Fault, SimulatedDisk, SimulatedFile
from headrace.runtime.simulated.errors import HostDied, SimulatedCrash, SimulationFailed, SimulationStuck
from headrace.runtime.simulated.loop import SimulatedLoop
from headrace.runtime.simulated.network import Fabric, NetworkModel, SimulatedNetwork
from headrace.runtime.simulated.simulation import (
    DATA_DIRECTORY,
    Host,
    Simulation,
    SimulationResult,
    run_simulation,
    run_twice,
    simulated_host,
    simulated_runtime,
)
from headrace.runtime.simulated.storage import CrashModel
from headrace.runtime.simulated.trace import Trace
from headrace.runtime.simulated.workers import WorkModel

__all__ = [
    "DATA_DIRECTORY",
    "EPOCH_MS",
    "CrashModel",
    "Fabric",
    "Fault",
    "Host",
    "HostDied",
    "NetworkModel",
    "SimulatedClock",
    "SimulatedCrash",
    "SimulatedDisk",
    "SimulatedFile",
    "SimulatedLoop",
    "SimulatedNetwork",
    "Simulation",
    "SimulationFailed",
    "SimulationResult",
    "SimulationStuck",
    "Trace",
    "WorkModel",
    "run_simulation",
    "run_twice",
    "simulated_host",
    "simulated_runtime",
]
