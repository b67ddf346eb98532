"""As much of ZooKeeper as the store needs: a tree of small nodes, changed together or not at all, and watched.

`KazooSession` talks to a real ensemble, `DirectorySession` keeps the tree in a directory of one machine, `ModelSession`
is a model for simulations. All of them behave alike: changes have one order for everyone, a session sees its own at
once and those of others perhaps later, never in another order; what belongs to a session (ephemeral nodes) is gone
when it ends; and a change whose connection broke may have been made or not.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

from headrace.errors import HeadraceError
from headrace.runtime import Clock

ANY_VERSION: Final = -1
NODE_BYTES_MAX: Final = 256 * 1024
"""A server refuses nodes of over 1 MB by closing the connection, which looks like any other loss of it."""

#: The part of a session's time-out that can be relied on. The rest is for servers that are late to tell each other whom
#: they heard of, and for clocks that differ.
_SURE: Final = 0.5

Watch: TypeAlias = Callable[[], None]
"""Called on the event loop, at most once: something has changed, or the connection was lost. Look again."""


class SessionState(enum.Enum):
    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """No server answers. The session may still be alive."""
    EXPIRED = "expired"
    """A server said that it is over: its ephemeral nodes are gone, and it never comes back."""


class NodeError(HeadraceError):
    """An operation does not fit the nodes there are; nothing was changed."""

    def __init__(self, path: str, what: str) -> None:
        self.path = path
        super().__init__(f"{path}: {what}")


class NodeMissingError(NodeError):
    """There is no such node (or, for a new one, no parent)."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "there is no such node")


class NodeExistsError(NodeError):
    def __init__(self, path: str) -> None:
        super().__init__(path, "the node is there already")


class NodeChangedError(NodeError):
    """The node has another version than was expected."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "the node was changed by another")


class NodeNotEmptyError(NodeError):
    def __init__(self, path: str) -> None:
        super().__init__(path, "the node has others below it")


class ConnectionBrokenError(HeadraceError):
    """The connection was lost before an answer came: what was asked for has been done, or not."""


class SessionExpiredError(HeadraceError):
    """The session is over, and with it whatever it had."""


class StoreNode(NamedTuple):
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class CheckVersion:
    """The node is there in this version."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Create:
    """A new node of version 0. An ephemeral one goes with its session."""

    path: str
    data: bytes
    is_ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Write:
    """Other data for a node, whose version grows by one."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int = ANY_VERSION


Operation: TypeAlias = CheckVersion | Create | Write | Delete


class StoreSession(Protocol):
    """One session. Its methods run on the event loop that it was started on."""

    @property
    def state(self) -> SessionState: ...

    @property
    def connected_since(self) -> float | None:
        """By the monotonic clock: since when the connection is unbroken. None while there is none."""
        ...

    @property
    def sure_until(self) -> float:
        """By the clock's `boottime`: until then the session is not over because the store does not hear of it."""
        ...

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call this on the event loop whenever the state has changed."""
        ...

    async def start(self) -> None:
        """Connect. A `ConnectionBrokenError` says that no server answered in time."""
        ...

    def get(self, path: str, watch: Watch | None = None) -> Awaitable[StoreNode | None]:
        """The node, or None when it is missing. The watch is for its next change, or for when it is made."""
        ...

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """The names below a node, sorted. The watch is for the next name that comes or goes."""
        ...

    async def apply(self, operations: Sequence[Operation]) -> None:
        """Make all changes, or none and raise the `NodeError` of the first that does not fit."""
        ...

    async def sync(self) -> None:
        """Return when this session sees everything that was changed before it was called."""
        ...

    async def close(self) -> None:
        """End the session at once, and with it its ephemeral nodes. Idempotent."""
        ...


class SessionBase:
    """What all sessions have: the state, since when there is a connection, and who is told of a change."""

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        """`timeout_s` is how long the session outlives the last time that a server heard of it."""
        self._clock = clock
        self._timeout_s = timeout_s
        self._state = SessionState.SUSPENDED
        self._since: float | None = None
        # When that was asked which a server answered last: it heard of the session then, or later.
        self._heard_at = float("-inf")
        self._callbacks: list[Callable[[], None]] = []

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def connected_since(self) -> float | None:
        return self._since

    @property
    def sure_until(self) -> float:
        return self._heard_at + self._timeout_s * _SURE

    def on_change(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def _set_state(self, state: SessionState) -> None:
        self._state = state
        self._since = self._clock.monotonic() if state is SessionState.CONNECTED else None
        if state is SessionState.EXPIRED:
            self._heard_at = float("-inf")
