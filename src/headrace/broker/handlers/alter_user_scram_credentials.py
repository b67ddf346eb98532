"""AlterUserScramCredentials (key 51): set and remove SCRAM credentials. They are kept; no listener asks for them yet.

Serves version 0.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from headrace.broker.dispatch import RequestContext, handles
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, versions=(0, 0))
def alter_user_scram_credentials(
    broker: Broker, context: RequestContext, request: AlterUserScramCredentialsRequest
) -> Coroutine[Any, Any, AlterUserScramCredentialsResponse]:
    return broker.decide(broker.controller.alter_user_scram_credentials, request)
