"""DescribeUserScramCredentials (key 50): which users have SCRAM credentials, never the credentials.

Serves version 0.
"""

from __future__ import annotations

from headrace.broker.metadata.service import MetadataService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)


@handles(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, versions=(0, 0), requires=(on_cluster(Operation.DESCRIBE),))
def describe_user_scram_credentials(
    request: DescribeUserScramCredentialsRequest, context: RequestContext, metadata: MetadataService
) -> DescribeUserScramCredentialsResponse:
    return metadata.controller.describe_user_scram_credentials(metadata.image, request)
