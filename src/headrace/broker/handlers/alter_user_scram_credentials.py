"""AlterUserScramCredentials (key 51): set and remove SCRAM credentials, by which users log in.

Serves version 0.
"""

from __future__ import annotations

from headrace.broker.metadata.service import MetadataService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)


@handles(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, versions=(0, 0), requires=(on_cluster(Operation.ALTER),))
async def alter_user_scram_credentials(
    request: AlterUserScramCredentialsRequest, context: RequestContext, metadata: MetadataService
) -> AlterUserScramCredentialsResponse:
    return await metadata.decide(metadata.controller.alter_user_scram_credentials, request, context=context)
