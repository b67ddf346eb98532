"""The messages around every SASL mechanism: choose it, then send its tokens back and forth (KIP-43, KIP-152)."""

from __future__ import annotations

from collections.abc import Callable, Generator

from headrace.errors import ErrorCode, IllegalSaslStateError, UnsupportedSaslMechanismError, error_for
from headrace.net.authentication import Authenticate, Flow
from headrace.net.node import Node
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest

Exchange = Generator[bytes, bytes, None]
"""A mechanism: yields what the client says, is sent what the server says, ends when both are content."""


def authenticate_by(mechanism: str, exchange: Callable[[], Exchange]) -> Authenticate:
    """A flow for connections: `exchange` makes a new conversation for each."""

    def flow(node: Node) -> Flow:
        chosen = yield SaslHandshakeRequest(mechanism=mechanism)
        if chosen.error_code:
            offered = ", ".join(chosen.mechanisms)
            what = f"it offers {offered}: set sasl.mechanism" if offered else "it offers none: set security.protocol"
            raise UnsupportedSaslMechanismError(f"{node} does not take the SASL mechanism {mechanism}; {what}")
        conversation = exchange()
        token = next(conversation)
        while True:
            answer = yield SaslAuthenticateRequest(auth_bytes=token)
            if answer.error_code:
                error = error_for(answer.error_code, _refusal(node, mechanism, answer.error_message))
                # A mechanism may have something to forget.
                conversation.throw(error)
                raise error
            try:
                token = conversation.send(bytes(answer.auth_bytes))
            except StopIteration:
                lifetime_ms: int = answer.session_lifetime_ms
                return lifetime_ms

    return flow


def login_is_wanted(protocol: str) -> Authenticate:
    """A flow of a client that does not log in: whether it would have to, with `protocol` as its security.protocol.

    A listener that asks for SASL closes the connection of who does not begin with it, and says nothing; asked for a
    mechanism that nobody has, it names its own. Any other says that SASL is out of place, and goes on as before.
    """

    def flow(node: Node) -> Flow:
        answer = yield SaslHandshakeRequest(mechanism="")
        # Old brokers name the mechanisms of other listeners, too, where there is no login.
        if answer.mechanisms and answer.error_code != ErrorCode.ILLEGAL_SASL_STATE:
            *others, last = answer.mechanisms
            ways = f"{', '.join(others)} or {last}" if others else last
            raise IllegalSaslStateError(
                f"{node} answers only who logs in, by {ways}: set security.protocol to "
                f"{protocol}, sasl.mechanism, and sasl.username and sasl.password or what else the mechanism needs"
            )
        return 0

    return flow


def _refusal(node: Node, mechanism: str, reason: str | None) -> str:
    said = f": {reason}" if reason else ""
    return f"{node} refused the credentials ({mechanism}){said}. Check the user name and password, or the token"
