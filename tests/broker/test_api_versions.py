"""What a client is told of versions and features before anything else."""

from __future__ import annotations

import pytest

from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.testing import broker

from .raw import RawClient


@pytest.mark.parametrize(("version", "is_told"), [(3, False), (4, True)])
def test_features_that_may_be_at_level_0_are_told_from_version_4_on(version: int, is_told: bool) -> None:
    with broker() as kafka, RawClient(kafka.port) as client:
        request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        answer = client.request(request, version)
    lowest = {feature.name: feature.min_version for feature in answer.supported_features}
    assert "metadata.version" in lowest
    assert (0 in lowest.values()) == is_told
