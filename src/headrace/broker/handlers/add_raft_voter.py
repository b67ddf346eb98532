"""AddRaftVoter (key 80): refused, as there is no KRaft quorum here.

Serves versions 0-1.
"""

from __future__ import annotations

from headrace.broker.metadata.voters import refuse_voter
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.broker.view import ClusterView
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse


@handles(ApiKey.ADD_RAFT_VOTER, versions=(0, 1), requires=(on_cluster(Operation.ALTER),))
def add_raft_voter(request: AddRaftVoterRequest, context: RequestContext, cluster: ClusterView) -> AddRaftVoterResponse:
    return refuse_voter(AddRaftVoterResponse(), request.cluster_id, cluster.cluster_id)
