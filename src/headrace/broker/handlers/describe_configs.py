"""DescribeConfigs (key 32): the configuration of topics and brokers, and where each value comes from.

Serves versions 1-4. 1 tells sources and synonyms; 3 types and documentation.
"""

from __future__ import annotations

from headrace.broker.metadata.service import MetadataService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, of_configs
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse


@handles(ApiKey.DESCRIBE_CONFIGS, versions=(1, 4), requires=of_configs(Operation.DESCRIBE_CONFIGS), each_once=True)
def describe_configs(
    request: DescribeConfigsRequest, context: RequestContext, metadata: MetadataService
) -> DescribeConfigsResponse:
    return metadata.controller.describe_configs(metadata.image, request)
