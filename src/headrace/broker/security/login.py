"""The login of one connection by SASL: which requests may come when, and what becomes of each (KIP-43, 152, 368).

Until somebody is known, nothing is decoded but ApiVersions and the two requests of SASL. What is out of order ends the
connection, with the answer that Apache Kafka gives where it gives one. Nothing is told of why a login was refused
but what the mechanism tells everybody; the reason is in our own log.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from enum import Enum
from typing import Final

from headrace.broker.requests.client import Client
from headrace.broker.requests.dispatch import CloseConnectionError, Pending, RequestContext
from headrace.broker.security.listener import ListenerSecurity
from headrace.errors import ErrorCode, KafkaError, SaslAuthenticationFailedError
from headrace.net.frames import FrameRefusedError
from headrace.net.sasl.serving import BadCredentialsError, Proof, ServerMechanism
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from headrace.words import visible

log = logging.getLogger("headrace.broker.security")

#: How soon after a renewal began the next may.
RENEWAL_PAUSE_S: Final = 1.0
#: How many steps a mechanism may take, and how often versions may be asked for: all that there are need three.
STEPS_MAX: Final = 10


class State(Enum):
    BEGUN = "nothing has been asked"
    VERSIONS_TOLD = "knows what is served"
    BARE_TOKENS = "sends tokens without a header"
    TOKENS = "sends tokens"
    KNOWN = "has shown who it is"
    OVER = "has to show again who it is"
    REFUSED = "was refused"


class Login:
    """What is known of who is at the other end, and what may come next."""

    __slots__ = (
        "_connection", "_expiry", "_mechanism", "_mechanism_name", "_renewal_began", "_security", "_state", "_steps",
        "_version", "proof",
    )  # fmt: skip

    def __init__(self, connection: Client, security: ListenerSecurity) -> None:
        self._connection = connection
        self._security = security
        self._state = State.BEGUN
        self._mechanism: ServerMechanism | None = None
        self._mechanism_name = ""
        self._steps = 0
        self._renewal_began: float | None = None
        self._expiry: asyncio.TimerHandle | None = None
        #: Who was there last, which a renewal may not change.
        self.proof: Proof | None = None

    @property
    def is_renewal(self) -> bool:
        return self.proof is not None

    # --- requests of somebody who is not known

    def check_size(self, size: int) -> None:
        """Refuse a frame that is larger than what it takes to log in."""
        limit = self._security.receive_bytes_max
        if size > limit:
            raise FrameRefusedError(
                f"a frame of {size} bytes before a login, where {limit} are allowed (sasl.server.max.receive.size)"
            )

    def may_ask(self, api_key: int) -> bool:
        """Whether a request may be decoded; False: it is answered with an error, and the connection ends.

        Raises `CloseConnectionError` for what is not answered at all.
        """
        self._count_step()
        state = self._state
        if state is State.TOKENS:
            return api_key == ApiKey.SASL_AUTHENTICATE
        if api_key == ApiKey.SASL_HANDSHAKE and state in (State.BEGUN, State.VERSIONS_TOLD, State.OVER):
            return True
        if api_key == ApiKey.API_VERSIONS and state is State.BEGUN:
            return True
        who = "a client whose session is over" if state is State.OVER else "a client that has not logged in"
        raise CloseConnectionError(f"{who} asked for API {api_key}")

    def versions_told(self) -> None:
        if self._state is State.BEGUN:
            self._state = State.VERSIONS_TOLD

    def _count_step(self) -> None:
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise CloseConnectionError(f"no login within {STEPS_MAX} requests")

    # --- the two requests of SASL

    def handshake(self, context: RequestContext, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
        if self._state is State.KNOWN and not self._may_renew():
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        enabled = list(self._security.mechanisms)
        make = self._security.mechanisms.get(request.mechanism)
        if make is None or (self.is_renewal and request.mechanism != self._mechanism_name):
            # Also a renewal by another mechanism: whoever logged in by a token does not go on by a password.
            self._refuse(f"wants to log in by {visible(request.mechanism[:100])}, there are {', '.join(enabled)}")
            context.ends_connection = "the SASL mechanism is not enabled"
            return SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=enabled)
        if self.is_renewal:
            self._begin_renewal()
        self._mechanism = make()
        self._mechanism_name = request.mechanism
        self._state = State.TOKENS if context.api_version > 0 else State.BARE_TOKENS
        return SaslHandshakeResponse(mechanisms=enabled)

    def _may_renew(self) -> bool:
        if not self._security.session_ms(self._mechanism_name):
            return False
        began = self._renewal_began
        return began is None or self._connection.now() - began >= RENEWAL_PAUSE_S

    def _begin_renewal(self) -> None:
        self._renewal_began = self._connection.now()
        self._steps = 0
        self._stop_expiry()
        self._connection.identify(None)

    def authenticate(
        self, context: RequestContext, request: SaslAuthenticateRequest
    ) -> SaslAuthenticateResponse | Pending[SaslAuthenticateResponse]:
        if self._state is not State.TOKENS:
            return SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE,
                error_message="SaslAuthenticate request received after successful authentication",
            )
        try:
            answer, lifetime_ms = self._respond(bytes(request.auth_bytes))
        except SaslAuthenticationFailedError as error:
            context.ends_connection = "the login was refused"
            return Pending(self._refused_later(error))
        return SaslAuthenticateResponse(error_message="", auth_bytes=answer, session_lifetime_ms=lifetime_ms)

    async def _refused_later(self, error: KafkaError) -> SaslAuthenticateResponse:
        await asyncio.sleep(self._security.refusal_delay_s)
        return SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=error.message)

    def took_token(self, frame: memoryview) -> bool:
        """Whether the frame is no request, but a token without a header, which is answered here."""
        if self._state is not State.BARE_TOKENS:
            return False
        connection = self._connection
        try:
            self._count_step()
            answer = self._respond(bytes(frame))[0]
            connection.send_bytes(struct.pack(">i", len(answer)) + answer)
        except SaslAuthenticationFailedError:
            # Nothing can carry the refusal; the end of the connection comes as late as one would.
            connection.rest(self._security.refusal_delay_s, ends="the login was refused")
        except CloseConnectionError as error:
            connection.close(str(error))
        return True

    def _respond(self, message: bytes) -> tuple[bytes, int]:
        mechanism = self._mechanism
        assert mechanism is not None
        try:
            answer = mechanism.respond(message)
            if mechanism.proof is None:
                return answer, 0
            return answer, self._known(mechanism.proof)
        except SaslAuthenticationFailedError as error:
            self._refuse(getattr(mechanism, "refused", None) or error.message)
            raise
        except BadCredentialsError as error:
            self._refuse(str(error))
            when = "re-authentication" if self.is_renewal else "authentication"
            raise SaslAuthenticationFailedError(
                f"Authentication failed during {when} due to invalid credentials with SASL mechanism "
                f"{self._mechanism_name}"
            ) from None

    # --- what comes of it

    def _known(self, proof: Proof) -> int:
        """Who it is: for how many milliseconds that is told to hold."""
        before = self.proof
        if before is not None and before.principal != proof.principal:
            raise SaslAuthenticationFailedError(
                f"Cannot change principals during re-authentication from {before.kind}.{before.name}: "
                f"{proof.kind}.{proof.name}"
            )
        session_ms = self._security.session_ms(self._mechanism_name)
        lifetime_ms = session_ms
        if proof.expires_at_ms is not None:
            left_ms = proof.expires_at_ms - self._security.now_ms()
            if left_ms <= 0:
                raise BadCredentialsError("the credential has expired")
            lifetime_ms = min(left_ms, session_ms) if session_ms else left_ms
        self.proof = proof
        self._mechanism = None
        self._state = State.KNOWN
        self._connection.identify(proof.principal)
        self._connection.has_been_valid = True
        if session_ms:
            # Without `connections.max.reauth.ms` the end of a credential is told, and nobody is cut off by it.
            loop = asyncio.get_running_loop()
            self._expiry = loop.call_later(lifetime_ms / 1000, self._session_over)
        return lifetime_ms

    def _session_over(self) -> None:
        """From now on only a renewal is answered. Whoever asks for nothing stays connected."""
        self._expiry = None
        if self._state is State.KNOWN:
            self._state = State.OVER
            self._steps = 0
            self._connection.identify(None)

    def _refuse(self, why: str) -> None:
        self._state = State.REFUSED
        self._mechanism = None
        self._connection.identify(None)
        self._security.tell_refusal(self._connection, f"{self._mechanism_name or 'SASL'}: {why}")

    def end(self) -> None:
        """The connection is lost."""
        self._stop_expiry()

    def _stop_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None


def is_stranger(connection: Client) -> bool:
    """Whether it has never shown who is at the other end, and has to."""
    return connection.rights is None and (connection.login is None or connection.login.proof is None)
