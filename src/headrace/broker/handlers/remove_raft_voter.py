"""RemoveRaftVoter (key 81): refused, as there is no KRaft quorum here.

Serves version 0.
"""

from __future__ import annotations

from headrace.broker.metadata.voters import refuse_voter
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.broker.view import ClusterView
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse


@handles(ApiKey.REMOVE_RAFT_VOTER, versions=(0, 0), requires=(on_cluster(Operation.ALTER),))
def remove_raft_voter(
    request: RemoveRaftVoterRequest, context: RequestContext, cluster: ClusterView
) -> RemoveRaftVoterResponse:
    return refuse_voter(RemoveRaftVoterResponse(), request.cluster_id, cluster.cluster_id)
