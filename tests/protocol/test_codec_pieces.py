"""Large answers are made of pieces, so that nothing large is copied; together they are the same bytes."""

from __future__ import annotations

import random

from headrace.protocol import codec
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from headrace.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from headrace.protocol.schema import Shared


def test_large_answers_are_the_same_bytes_in_pieces() -> None:
    rng = random.Random(1)
    sizes = [rng.choice((0, 10, 1000, 70_000, 300_000)) for _ in range(60)]
    metadata = [rng.randbytes(size) for size in sizes]
    members = [JoinGroupResponseMember(member_id=f"m{n}", metadata=told) for n, told in enumerate(metadata)]
    message = JoinGroupResponse(protocol_type="consumer", protocol_name="range", members=members)
    parts = codec.response_encoder(JoinGroupResponse, 7)(message, 5)
    frame = b"".join(parts)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert codec.decode_response(JoinGroupResponse, 7, frame[4:]) == (5, message)
    # What is large is there as it is, and not a copy.
    assert {id(told) for told in metadata if len(told) >= codec.LARGE_PART_BYTES} <= {id(part) for part in parts}
    assert max(len(part) for part in parts) <= max(sizes) + codec.PIECE_BYTES
    small = codec.response_encoder(JoinGroupResponse, 7)(JoinGroupResponse(members=members[:1]), 5)
    assert len(small) == 1


def test_what_is_shared_is_encoded_as_what_is_not() -> None:
    configs = [DescribeConfigsResourceResult(name=f"k{n}", value="v", synonyms=[]) for n in range(30)]

    def answer(of: list[DescribeConfigsResourceResult]) -> DescribeConfigsResponse:
        return DescribeConfigsResponse(
            results=[DescribeConfigsResult(resource_name=f"t{n}", configs=of) for n in range(40)]
        )

    for version in (1, 2, 3, 4):
        encode = codec.response_encoder(DescribeConfigsResponse, version)
        shared = Shared(configs)
        assert encode(answer(shared), 1) == encode(answer(configs), 1)
        assert list(shared.encoded) == [version]
