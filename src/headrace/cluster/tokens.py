"""Delegation tokens: secrets that are derived from a token's id and the cluster's key, with an owner and an end.

Nothing secret is in the metadata: who knows the id of a token and not `delegation.token.secret.key` cannot use it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field

from headrace.cluster.broker_config import BrokerConfig
from headrace.cluster.decision import Decision
from headrace.cluster.image import Image
from headrace.cluster.records import DelegationTokenRecord, RemoveDelegationTokenRecord
from headrace.config import Password


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """What a cluster says of its tokens; the same on all of its brokers."""

    secret: bytes | None = field(repr=False)
    lifetime_max_ms: int
    renewal_ms: int

    @classmethod
    def of(cls, config: BrokerConfig) -> TokenSettings:
        given = config["delegation.token.secret.key"]
        secret = given.value.encode() if isinstance(given, Password) and given.value else None
        return cls(
            secret,
            config.get_int("delegation.token.max.lifetime.ms"),
            config.get_int("delegation.token.expiry.time.ms"),
        )

    def hmac_of(self, token_id: str) -> bytes:
        assert self.secret is not None
        return hmac.digest(self.secret, token_id.encode(), hashlib.sha512)

    def password_of(self, token_id: str) -> str:
        """By which somebody logs in as the token."""
        return base64.b64encode(self.hmac_of(token_id)).decode()

    def find(self, image: Image, given: bytes) -> DelegationTokenRecord | None:
        """The token of that HMAC. It takes as long for each that is wrong."""
        found = None
        for token in image.tokens.values():
            if hmac.compare_digest(self.hmac_of(token.token_id), given):
                found = token
        return found


def create(
    token_id: str, owner: str, requester: str, renewers: Iterable[str], lifetime_ms: int, now_ms: int, s: TokenSettings
) -> Decision[DelegationTokenRecord]:
    lifetime_ms = min(lifetime_ms, s.lifetime_max_ms) if lifetime_ms > 0 else s.lifetime_max_ms
    token = DelegationTokenRecord(
        owner=owner,
        requester=requester,
        renewers=list(renewers),
        issue_timestamp=now_ms,
        max_timestamp=now_ms + lifetime_ms,
        expiration_timestamp=now_ms + min(lifetime_ms, s.renewal_ms),
        token_id=token_id,
    )
    return Decision(token, [token])


def renew(token: DelegationTokenRecord, period_ms: int, now_ms: int, s: TokenSettings) -> Decision[int]:
    """The answer is when it expires."""
    period_ms = min(period_ms, s.renewal_ms) if period_ms > 0 else s.renewal_ms
    return _until(token, now_ms + period_ms)


def expire(token: DelegationTokenRecord, period_ms: int, now_ms: int) -> Decision[int]:
    """Below zero: at once."""
    if period_ms < 0:
        return Decision(now_ms, [RemoveDelegationTokenRecord(token_id=token.token_id)])
    return _until(token, now_ms + period_ms)


def _until(token: DelegationTokenRecord, at_ms: int) -> Decision[int]:
    changed = copy(token)
    changed.expiration_timestamp = min(token.max_timestamp, at_ms)
    return Decision(changed.expiration_timestamp, [changed])


def remove_expired(image: Image, now_ms: int) -> Decision[int]:
    """The answer is how many there were."""
    gone = [token.token_id for token in image.tokens.values() if has_expired(token, now_ms)]
    return Decision(len(gone), [RemoveDelegationTokenRecord(token_id=token_id) for token_id in gone])


def has_expired(token: DelegationTokenRecord, now_ms: int) -> bool:
    return now_ms > min(token.expiration_timestamp, token.max_timestamp)


def may_renew(token: DelegationTokenRecord, principal: str) -> bool:
    """Its owner and those named for it; to be a super user is not enough."""
    return principal == token.owner or principal in token.renewers
