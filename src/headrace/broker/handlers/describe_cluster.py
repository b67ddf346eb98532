"""DescribeCluster (key 60): the cluster's id, controller and brokers.

Serves versions 0-2. Endpoints of controllers (type 2) are not to be had from a broker; 2 can tell fenced brokers.
"""

from __future__ import annotations

from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import NOTHING
from headrace.cluster.answers import Answers
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse


@handles(ApiKey.DESCRIBE_CLUSTER, versions=(0, 2), requires=NOTHING)
def describe_cluster(
    request: DescribeClusterRequest, context: RequestContext, answers: Answers
) -> DescribeClusterResponse:
    return answers.describe_cluster(request, context.listener)
