"""The simulated runtime: a cluster in one process, where a seed decides time, order, network, disk and crashes.

    async def main(simulation):
        broker, client = simulation.host("broker-1"), simulation.host("client")
        serving = broker.start(serve(broker.runtime))           # everything it starts belongs to the host
        await client.start(produce(client.runtime, "broker-1", 9092))
        simulation.network.partition(["client"], ["broker-1"])  # heal(), reset(), half_open()
        broker.disk.inject(Fault("sync"))                       # fill(), crash_after()
        broker.kill()                                           # power loss: what was not synced may be gone, torn
        broker.start(serve(broker.restart()))

    result = run_twice(main, seed=7)                            # the same trace_hash both times, or an error

Code without asyncio needs no loop: `host = simulated_host(seed)`, then `host.runtime`, `host.kill()`, `host.restart()`.

With `run_simulation(main, seed, interleaving=Interleaving(...))` disk work is not done in one go, but interleaved with
the loop's own work at points that the seed chooses.

What must not happen inside, because it would not repeat: threads, real sockets or files, time and random modules,
iteration over sets of strings or of objects, decisions by `id()` or `hash()`.
"""

from headrace.runtime.simulated.clock import EPOCH_MS, SimulatedClock
from headrace.runtime.simulated.disk import DiskFault, SimulatedDisk, SimulatedFile
from headrace.runtime.simulated.errors import HostDiedError, SimulatedCrash, SimulationFailedError, SimulationStuckError
from headrace.runtime.simulated.interleaving import Interleaver, Interleaving
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
    "DiskFault",
    "Fabric",
    "Host",
    "HostDiedError",
    "Interleaver",
    "Interleaving",
    "NetworkModel",
    "SimulatedClock",
    "SimulatedCrash",
    "SimulatedDisk",
    "SimulatedFile",
    "SimulatedLoop",
    "SimulatedNetwork",
    "Simulation",
    "SimulationFailedError",
    "SimulationResult",
    "SimulationStuckError",
    "Trace",
    "WorkModel",
    "run_simulation",
    "run_twice",
    "simulated_host",
    "simulated_runtime",
]
