"""Turning the checks of rights on, where the configuration asks for them."""

from __future__ import annotations

from headrace.broker.authorization.checks import RightsCheck, check_broker
from headrace.broker.requests.pipeline import RequestPipeline
from headrace.broker.view import ClusterView
from headrace.cluster.acl_authorizer import AclAuthorizer, is_authorized


def check_rights(pipeline: RequestPipeline, cluster: ClusterView) -> None:
    """Decide by the ACLs of the cluster from now on, if there is an authorizer; otherwise, who may act as a broker."""
    if is_authorized(cluster.started_with):
        pipeline.access.authorizer = AclAuthorizer(cluster.image, cluster.started_with)
        pipeline.may = RightsCheck(cluster)
    elif pipeline.access.has_strangers:
        pipeline.may = check_broker
