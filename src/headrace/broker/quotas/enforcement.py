"""The quotas of a broker's clients: found in the metadata, and kept count of for as long as they matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from headrace.broker.quotas.meters import Allowance, ClientMeter, PartitionChanges
from headrace.broker.quotas.precedence import QuotaTable, of_addresses
from headrace.broker.quotas.rates import Rate
from headrace.cluster.authorizer import java_host

if TYPE_CHECKING:
    from headrace.broker.requests.access import Access
    from headrace.cluster.broker_config import BrokerConfig
    from headrace.cluster.image import Image
    from headrace.runtime import Clock

PRODUCED: Final = "producer_byte_rate"
CONSUMED: Final = "consumer_byte_rate"
WORKED: Final = "request_percentage"
CHANGES: Final = "controller_mutation_rate"
CONNECTIONS: Final = "connection_creation_rate"
#: For how many clients each kind of use is counted. Those that were quiet the longest are forgotten first.
COUNTED_MAX: Final = 10_000
_MS: Final = 1000

C = TypeVar("C", Allowance, PartitionChanges)


class ClientQuotas:
    """Gives every client its meter, and every address its pause."""

    def __init__(self, access: Access, config: BrokerConfig, clock: Clock, image: Image) -> None:
        self._access = access
        self._image = image
        self._samples = config.get_int("quota.window.num")
        self._window_ms = config.get_int("quota.window.size.seconds") * _MS
        self._changes_samples = config.get_int("controller.quota.window.num")
        self._changes_window_ms = config.get_int("controller.quota.window.size.seconds") * _MS
        self._now_ms: Callable[[], int] = lambda: int(clock.monotonic() * _MS)
        self._version = -1
        self._tables: dict[str, QuotaTable] = {}
        self._allowances: dict[tuple[str, str, str], Allowance] = {}
        self._changes: dict[tuple[str, str, str], PartitionChanges] = {}
        self._addresses: dict[str | None, float] = {}
        self._connections: dict[str, Rate] = {}

    def follow(self) -> None:
        """After a change of the metadata: the quotas that are set count from now on."""
        image = self._image
        if image.quotas_version == self._version:
            return
        self._version = image.quotas_version
        self._tables = {key: QuotaTable(image.quotas, key) for key in (PRODUCED, CONSUMED, WORKED, CHANGES)}
        self._addresses = of_addresses(image.quotas, CONNECTIONS)
        self._access.meter_of = self._meter_of if any(self._tables.values()) else None
        self._access.quotas_version += 1

    def _meter_of(self, principal: str, client_id: str) -> ClientMeter | None:
        user = principal.partition(":")[2]  # whatever its kind
        meter = ClientMeter(
            self._counted(PRODUCED, user, client_id, self._allowances, self._allowance),
            self._counted(CONSUMED, user, client_id, self._allowances, self._allowance),
            self._counted(WORKED, user, client_id, self._allowances, self._time_allowance),
            self._counted(CHANGES, user, client_id, self._changes, self._new_changes),
        )
        is_bounded = meter.produced or meter.consumed or meter.worked or meter.changes
        return meter if is_bounded else None

    def _counted(
        self, key: str, user: str, client_id: str, counted: dict[tuple[str, str, str], C], make: Callable[[float], C]
    ) -> C | None:
        """What is counted for all clients that share this quota, in the order in which they were looked up last."""
        bound = self._tables[key].find(user, client_id)
        if bound is None:
            return None
        shared = (key, bound.user, bound.client_id)
        found = counted.pop(shared, None)
        if found is None:
            if len(counted) >= COUNTED_MAX:
                self._forget(counted)
            found = make(bound.value)
        else:
            found.set_bound(bound.value)
        counted[shared] = found
        return found

    @staticmethod
    def _forget(counted: dict[tuple[str, str, str], C]) -> None:
        """Make room: what is as good as new goes, and if that is not enough, what was looked up the longest ago."""
        for shared in [shared for shared, one in counted.items() if one.is_quiet()]:
            del counted[shared]
        for shared in list(counted)[: max(0, len(counted) - COUNTED_MAX * 3 // 4)]:
            del counted[shared]

    def _allowance(self, bound: float) -> Allowance:
        return Allowance(bound, self._samples, self._window_ms, self._now_ms)

    def _time_allowance(self, bound: float) -> Allowance:
        return Allowance(bound, self._samples, self._window_ms, self._now_ms, throttle_ms_max=self._window_ms)

    def _new_changes(self, bound: float) -> PartitionChanges:
        return PartitionChanges(bound, self._changes_samples, self._changes_window_ms, self._now_ms)

    # --- connections

    def connection_pause_s(self, address: str) -> float:
        """A connection has come from that address: for how long it has to wait to be ended; 0: it may stay."""
        if not self._addresses:
            return 0.0
        address = java_host(address)
        bound = self._addresses.get(address, self._addresses.get(None))
        if bound is None:
            return 0.0
        rate = self._connections.get(address)
        now_ms = self._now_ms()
        if rate is None:
            if len(self._connections) >= COUNTED_MAX:
                for one in [one for one, rate in self._connections.items() if rate.is_quiet(now_ms)]:
                    del self._connections[one]
                if len(self._connections) >= COUNTED_MAX:
                    del self._connections[next(iter(self._connections))]
            rate = self._connections[address] = Rate(self._samples, self._window_ms)
        rate.record(1, now_ms)
        throttle_ms = rate.throttle_ms(bound, now_ms)
        if throttle_ms:
            rate.record(-1, now_ms)
        return throttle_ms / _MS
