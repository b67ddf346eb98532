"""Delegation tokens of a broker: who logs in by one, and what is asked of them."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from headrace.broker.requests.access import ANONYMOUS
from headrace.broker.requests.dispatch import RequestContext
from headrace.broker.requests.rights import Operation, Resource
from headrace.cluster import tokens
from headrace.cluster.decision import Decision
from headrace.cluster.image import Image
from headrace.cluster.records import DelegationTokenRecord
from headrace.errors import ErrorCode, HeadraceError
from headrace.net.sasl.serving import USER, Proof, ScramKeys, scram_keys
from headrace.protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from headrace.protocol.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from headrace.protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from headrace.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse
from headrace.runtime import Clock

if TYPE_CHECKING:
    from headrace.cluster.broker_config import BrokerConfig

log = logging.getLogger("headrace.broker.security")

R = TypeVar("R")

_ITERATIONS: Final = 4096
_KEYS_MAX: Final = 1000
_ID_BYTES: Final = 16
_SALT_BYTES: Final = 16
_NO_TIME: Final = -1


class _Controlling(Protocol):
    @property
    def is_active(self) -> bool: ...


class TokensMetadata(Protocol):
    """The metadata, which tokens are kept in (`metadata/service.py`)."""

    @property
    def active(self) -> _Controlling:
        """Whether this broker is the controller."""

    @property
    def ask_controller(self) -> Callable[..., Awaitable[Any]] | None:
        """Where the controller may be another broker: how it is asked."""

    async def change(self, decide: Callable[[Image], Decision[R]]) -> R:
        """Decide with the cluster as it is, make the decision true, and give its response."""


class DelegationTokens:
    def __init__(self, clock: Clock, config: BrokerConfig, image: Callable[[], Image]) -> None:
        self.settings = tokens.TokenSettings.of(config)
        self._sweep_s = config.get_int("delegation.token.expiry.check.interval.ms") / 1000
        self._now_ms = clock.now_ms
        self._image = image
        # To derive them takes milliseconds.
        self._keys: OrderedDict[tuple[str, str], ScramKeys] = OrderedDict()

    # --- logins

    def look_up(self, mechanism: str, token_id: str) -> tuple[ScramKeys, Proof] | None:
        token = self._image().tokens.get(token_id)
        if token is None or self.settings.secret is None or tokens.has_expired(token, self._now_ms()):
            return None
        keys = self._keys.get((mechanism, token_id))
        if keys is None:
            salt = secrets.token_bytes(_SALT_BYTES)
            password = self.settings.password_of(token_id)
            keys = self._keys[mechanism, token_id] = scram_keys(mechanism, password, iterations=_ITERATIONS, salt=salt)
            if len(self._keys) > _KEYS_MAX:
                self._keys.popitem(last=False)
        kind, name = _split(token.owner)
        return keys, Proof(name, kind, expires_at_ms=token.expiration_timestamp, by_token=True)

    async def sweep(self, metadata: TokensMetadata) -> None:
        """Let the controller forget what has expired, for as long as the broker runs."""
        while True:
            await asyncio.sleep(self._sweep_s)
            if metadata.active.is_active and self._image().tokens:
                try:
                    await metadata.change(lambda image: tokens.remove_expired(image, self._now_ms()))
                except HeadraceError as error:
                    log.warning("expired delegation tokens are not removed for now: %s", error)
                except Exception:
                    log.exception("expired delegation tokens were not removed, by a defect: please report it")

    # --- requests

    def _lack(self, context: RequestContext) -> ErrorCode:
        """Why whoever asks may do nothing with tokens at all."""
        if self.settings.secret is None:
            return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        login = context.connection.login
        by_token = login is not None and login.proof is not None and login.proof.by_token
        if context.principal == ANONYMOUS or by_token:
            return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        return ErrorCode.NONE

    async def create(
        self, context: RequestContext, request: CreateDelegationTokenRequest, metadata: TokensMetadata
    ) -> CreateDelegationTokenResponse:
        requester = request.requester if context.is_from_broker and request.requester else context.principal
        owner = requester
        if request.owner_principal_name:
            owner = f"{request.owner_principal_type or USER}:{request.owner_principal_name}"
        error = ErrorCode.NONE if context.is_from_broker else self._lack(context)
        if error == ErrorCode.NONE and any(renewer.principal_type != USER for renewer in request.renewers):
            error = ErrorCode.INVALID_PRINCIPAL_TYPE
        is_for_another = owner != requester and not context.is_from_broker
        if error == ErrorCode.NONE and is_for_another:
            may = context.is_allowed(Operation.CREATE_TOKENS, Resource.USER, owner)
            error = error if may else ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        answer = CreateDelegationTokenResponse(error_code=error)
        answer.principal_type, answer.principal_name = _split(owner)
        answer.token_requester_principal_type, answer.token_requester_principal_name = _split(requester)
        if error != ErrorCode.NONE:
            answer.issue_timestamp_ms = answer.expiry_timestamp_ms = answer.max_timestamp_ms = _NO_TIME
            return answer
        kind, name = _split(owner)
        told = CreateDelegationTokenRequest(
            owner_principal_type=kind,
            owner_principal_name=name,
            renewers=request.renewers,
            max_lifetime_ms=request.max_lifetime_ms,
            requester=requester,
        )

        def decide(image: Image) -> Decision[CreateDelegationTokenResponse]:
            token_id = secrets.token_urlsafe(_ID_BYTES)
            renewers = [f"{one.principal_type}:{one.principal_name}" for one in request.renewers]
            decision = tokens.create(
                token_id, owner, requester, renewers, request.max_lifetime_ms, self._now_ms(), self.settings
            )
            token = decision.response
            answer.issue_timestamp_ms, answer.max_timestamp_ms = token.issue_timestamp, token.max_timestamp
            answer.expiry_timestamp_ms = token.expiration_timestamp
            answer.token_id, answer.hmac = token_id, self.settings.hmac_of(token_id)
            return _answering(decision, answer)

        return await _decided(context, told, metadata, decide)

    async def renew(
        self, context: RequestContext, request: RenewDelegationTokenRequest, metadata: TokensMetadata
    ) -> RenewDelegationTokenResponse:
        def decide(image: Image) -> Decision[RenewDelegationTokenResponse]:
            token = self.settings.find(image, request.hmac)
            error = self._refusal(context, token)
            if token is None or error != ErrorCode.NONE:
                return _answering(None, RenewDelegationTokenResponse(error_code=error))
            decision = tokens.renew(token, request.renew_period_ms, self._now_ms(), self.settings)
            return _answering(decision, RenewDelegationTokenResponse(expiry_timestamp_ms=decision.response))

        error = self._first_refusal(context, request.hmac)
        if error != ErrorCode.NONE:
            return RenewDelegationTokenResponse(error_code=error, expiry_timestamp_ms=_refused_until(error))
        return await _decided(context, request, metadata, decide)

    async def expire(
        self, context: RequestContext, request: ExpireDelegationTokenRequest, metadata: TokensMetadata
    ) -> ExpireDelegationTokenResponse:
        def decide(image: Image) -> Decision[ExpireDelegationTokenResponse]:
            token = self.settings.find(image, request.hmac)
            error = self._refusal(context, token)
            if token is None or error != ErrorCode.NONE:
                return _answering(None, ExpireDelegationTokenResponse(error_code=error))
            decision = tokens.expire(token, request.expiry_time_period_ms, self._now_ms())
            return _answering(decision, ExpireDelegationTokenResponse(expiry_timestamp_ms=decision.response))

        error = self._first_refusal(context, request.hmac)
        if error != ErrorCode.NONE:
            return ExpireDelegationTokenResponse(error_code=error, expiry_timestamp_ms=_refused_until(error))
        return await _decided(context, request, metadata, decide)

    def _first_refusal(self, context: RequestContext, hmac: bytes) -> ErrorCode:
        """By what is known here; what another broker passes on was looked at there."""
        if context.is_from_broker:
            return ErrorCode.NONE
        error = self._lack(context)
        if error == ErrorCode.NONE:
            token = self.settings.find(self._image(), hmac)
            # One that is not known here yet the controller may know; then it cannot be told whose it is.
            error = self._refusal(context, token)
        return error

    def _refusal(self, context: RequestContext, token: DelegationTokenRecord | None) -> ErrorCode:
        if token is None:
            return ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        if not context.is_from_broker and not tokens.may_renew(token, context.principal):
            return ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        if tokens.has_expired(token, self._now_ms()):
            return ErrorCode.DELEGATION_TOKEN_EXPIRED
        return ErrorCode.NONE

    def describe(
        self, context: RequestContext, request: DescribeDelegationTokenRequest
    ) -> DescribeDelegationTokenResponse:
        error = self._lack(context)
        if error != ErrorCode.NONE:
            return DescribeDelegationTokenResponse(error_code=error)
        wanted = None
        if request.owners is not None:
            wanted = [f"{owner.principal_type}:{owner.principal_name}" for owner in request.owners]
        return DescribeDelegationTokenResponse(
            tokens=[
                self._described(token)
                for token in self._image().tokens.values()
                if (wanted is None or any(tokens.may_renew(token, one) for one in wanted)) and _may_see(context, token)
            ]
        )

    def _described(self, token: DelegationTokenRecord) -> DescribedDelegationToken:
        found = DescribedDelegationToken(
            issue_timestamp=token.issue_timestamp,
            expiry_timestamp=token.expiration_timestamp,
            max_timestamp=token.max_timestamp,
            token_id=token.token_id,
            hmac=self.settings.hmac_of(token.token_id),
        )
        found.principal_type, found.principal_name = _split(token.owner)
        found.token_requester_principal_type, found.token_requester_principal_name = _split(token.requester)
        for renewer in token.renewers:
            kind, name = _split(renewer)
            found.renewers.append(DescribedDelegationTokenRenewer(principal_type=kind, principal_name=name))
        return found


def _refused_until(error: ErrorCode) -> int:
    """The time that Kafka tells with a refusal to renew or end a token: none, where no token was looked for."""
    return _NO_TIME if error == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED else 0


def _may_see(context: RequestContext, token: DelegationTokenRecord) -> bool:
    return (
        tokens.may_renew(token, context.principal)
        or context.may(Operation.DESCRIBE, Resource.DELEGATION_TOKEN, token.token_id)
        or context.may(Operation.DESCRIBE_TOKENS, Resource.USER, token.owner)
    )


async def _decided(
    context: RequestContext, request: Any, metadata: TokensMetadata, decide: Callable[[Image], Decision[R]]
) -> R:
    """Let the controller decide: this broker, or another one, which is told what this one knows of who asks."""

    def here() -> Awaitable[R]:
        return metadata.change(decide)

    if metadata.ask_controller is None or context.is_from_broker:
        return await here()
    response: R = await metadata.ask_controller(request, here=here)
    return response


def _answering(decision: Decision[Any] | None, response: R) -> Decision[R]:
    return Decision(response, [] if decision is None else decision.records)


def _split(principal: str) -> tuple[str, str]:
    kind, _, name = principal.partition(":")
    return kind, name
