"""The client at the other end of a connection, as requests see it: who it is, and how it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, Protocol

from headrace.broker.requests.access import Access, Rights
from headrace.broker.requests.metered import Metered
from headrace.broker.requests.route import Route
from headrace.log import Outcome
from headrace.net.sasl.serving import Proof
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from headrace.topics import TopicPartition


class ClientLogin(Protocol):
    """Its login, where it has to log in."""

    proof: Proof | None

    def may_ask(self, api_key: int) -> bool: ...
    def versions_told(self) -> None: ...
    def handshake(self, context: Any, request: SaslHandshakeRequest) -> SaslHandshakeResponse: ...
    def authenticate(self, context: Any, request: SaslAuthenticateRequest) -> Any: ...


class ClientListener(Protocol):
    """The security of the listener that a client came in through."""

    def tell_stranger(self, connection: Client) -> None: ...


class Client(Hashable, Protocol):
    """What everything but `server/` has to do with a connection (`server/connection.py`)."""

    # --- who it is

    peer_host: str
    peer_port: int
    #: The name of the listener that it came in through.
    listener: str
    #: What it may do; None until it has said who it is, where it has to.
    rights: Rights | None
    metered: Metered
    #: Name and version of what it is, as it says.
    software: tuple[str, str]
    has_been_valid: bool

    @property
    def access(self) -> Access: ...
    @property
    def security(self) -> ClientListener | None: ...
    @property
    def login(self) -> ClientLogin | None: ...
    @property
    def principal(self) -> str: ...
    @property
    def is_brokers(self) -> bool:
        """Whether another broker may be at the other end."""

    @property
    def is_lost(self) -> bool:
        """Whether nobody hears an answer any more."""

    def identify(self, principal: str | None) -> None:
        """It has shown who it is; None: what it has shown holds no more, and it has to do so again."""

    def tls_refused(self, why: str) -> None:
        """Its certificate names nobody."""

    # --- what it has asked for

    #: What it wrote last to partitions and is not on all replicas yet.
    uncommitted: dict[TopicPartition, asyncio.Future[list[Outcome]]]
    #: A request lies in the reader's buffer until the turn ends; what ends it now. None: there is none.
    put_off_until: Callable[[], None] | None
    #: When its last frame began to arrive.
    frame_began: float

    @property
    def now(self) -> Callable[[], float]:
        """The monotonic clock."""

    def keep(self, work: asyncio.Future[Any]) -> None:
        """Remember a request under way, which goes on also without its connection."""

    def at_turn_end(self, finish: Callable[[], None]) -> bool:
        """Call `finish` when all connections of this turn are read; False where each is read for itself."""

    def answer_put_off(self, route: Route, answer: bytes | None, frame_bytes: int, now: float, used_s: float) -> bool:
        """The turn ends: the answer to the request that was put off; None if it has to go the way of all others.

        Whether it is sent, but not counted: that is done for all of a turn together.
        """

    def wait_put_off(
        self, route: Route, correlation_id: int, frame_bytes: int, used_s: float
    ) -> Callable[[bytes], None] | None:
        """The turn ends: the request that was put off is done, and others are waited for. What is told the answer; None
        if nobody is there."""

    def send_bytes(self, data: bytes) -> None:
        """Send what is no answer to a request."""

    # --- the end of it

    def rest(self, seconds: float, *, ends: str | None = None) -> None:
        """Hear nothing of it for a while. `ends` is why the connection is closed after that."""

    def close(self, reason: str) -> None:
        """End the connection once what was written is sent."""

    def abort(self, reason: str) -> None:
        """End the connection at once, unsent answers dropped."""

    def fail(self, error: BaseException) -> None:
        """A defect of ours: it costs this connection."""
