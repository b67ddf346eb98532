"""Features of the cluster that have levels: which are known, what a new cluster starts with, how a level changes.

Only what is there is listed: a client takes a finalized feature as a promise (`transaction.version` 2 makes Java's
producer end transactions in the newer way).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from headrace.cluster.broker_config import BrokerConfig
from headrace.cluster.decision import ApiError, Decision
from headrace.cluster.image import Image
from headrace.cluster.records import FeatureLevelRecord, MetadataRecord
from headrace.error_codes import ErrorCode
from headrace.errors import UnsupportedVersionError
from headrace.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)


class FeatureRange(NamedTuple):
    low: int
    high: int


METADATA_VERSION: Final = "metadata.version"
TRANSACTION_VERSION: Final = "transaction.version"
ELIGIBLE_LEADER_REPLICAS_VERSION: Final = "eligible.leader.replicas.version"
GROUP_VERSION: Final = "group.version"
SHARE_VERSION: Final = "share.version"
STREAMS_VERSION: Final = "streams.version"

SUPPORTED_FEATURES: Final[dict[str, FeatureRange]] = {
    METADATA_VERSION: FeatureRange(7, 30),
    TRANSACTION_VERSION: FeatureRange(0, 2),
    ELIGIBLE_LEADER_REPLICAS_VERSION: FeatureRange(0, 1),
    GROUP_VERSION: FeatureRange(0, 1),
    SHARE_VERSION: FeatureRange(0, 1),
    STREAMS_VERSION: FeatureRange(0, 1),
}
_UPGRADE: Final = 1
_SAFE_DOWNGRADE: Final = 2
_UNSAFE_DOWNGRADE: Final = 3


def has_eligible(image: Image) -> bool:
    """Whether replicas are eligible to lead that are not in sync any more (KIP-966)."""
    return image.features.get(ELIGIBLE_LEADER_REPLICAS_VERSION, 0) > 0


def serves_consumer_groups(image: Image, config: BrokerConfig) -> bool:
    """Whether groups may speak the consumer protocol (KIP-848)."""
    return image.features.get(GROUP_VERSION, 0) > 0 and _has_protocol(config, "consumer")


def serves_streams_groups(image: Image, config: BrokerConfig) -> bool:
    """Whether applications may speak the streams protocol (KIP-1071)."""
    return image.features.get(STREAMS_VERSION, 0) > 0 and _has_protocol(config, "streams")


def _has_protocol(config: BrokerConfig, name: str) -> bool:
    protocols = config.values["group.coordinator.rebalance.protocols"]
    return isinstance(protocols, tuple) and name in protocols


def initial_records() -> list[MetadataRecord]:
    """What a new cluster finalizes: the highest level of everything."""
    return [FeatureLevelRecord(name=name, feature_level=known.high) for name, known in SUPPORTED_FEATURES.items()]


def update_features(image: Image, request: UpdateFeaturesRequest) -> Decision[UpdateFeaturesResponse]:
    """All the changes are made, or none."""
    records: list[MetadataRecord] = []
    seen: set[str] = set()
    for update in request.feature_updates:
        problem = _problem(image, update)
        if update.feature in seen:
            problem = ApiError(ErrorCode.INVALID_REQUEST, f"The feature {update.feature} comes twice in the request.")
        if problem is not None:
            message = f"Nothing was changed, because of one feature: {problem.message}"
            return Decision(UpdateFeaturesResponse(error_code=problem.code, error_message=message))
        seen.add(update.feature)
        if image.features.get(update.feature, 0) != update.max_version_level:
            records.append(FeatureLevelRecord(name=update.feature, feature_level=update.max_version_level))
    response = UpdateFeaturesResponse(
        error_code=ErrorCode.NONE,
        error_message=None,
        results=[
            UpdatableFeatureResult(feature=update.feature, error_code=ErrorCode.NONE, error_message=None)
            for update in request.feature_updates
        ],
    )
    return Decision(response, [] if request.validate_only else records)


def _waiting_for_eligible(image: Image) -> str | None:
    """A partition that only its eligible replicas can lead."""
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            if partition.eligible and not partition.isr:
                return f"{topic.name}-{index}"
    return None


def _problem(image: Image, update: FeatureUpdateKey) -> ApiError | None:
    name, level = update.feature, update.max_version_level
    known = SUPPORTED_FEATURES.get(name)
    now = image.features.get(name, 0)
    upgrade_type = _UNSAFE_DOWNGRADE if update.allow_downgrade else update.upgrade_type
    why: str | None = None
    if upgrade_type not in (_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE):
        why = f"the upgrade type {upgrade_type} is not known"
    elif known is None:
        why = f"this cluster does not know that feature, only {', '.join(SUPPORTED_FEATURES)}"
    elif not known.low <= level <= known.high:
        why = f"it can be {known.low} to {known.high} here"
    elif level < now and upgrade_type == _UPGRADE:
        why = f"it is {now}, and lower only goes with an upgrade type of downgrade"
    elif level > now and upgrade_type != _UPGRADE:
        why = f"it is {now}, so that is no downgrade"
    elif (
        level < now
        and name == ELIGIBLE_LEADER_REPLICAS_VERSION
        and upgrade_type == _SAFE_DOWNGRADE
        and (waiting := _waiting_for_eligible(image))
    ):
        why = (
            f"{waiting} has nobody in sync, and would forget which replicas may lead it: wait until they are back, or "
            "make it an unsafe downgrade"
        )
    elif level < now and name == METADATA_VERSION and upgrade_type == _SAFE_DOWNGRADE:
        why = f"it is {now}, and records in the metadata log might be lost by that"
    elif level != now:
        why = _unsupported(image, name, level)
    if why is None:
        return None
    return ApiError(ErrorCode.INVALID_UPDATE_VERSION, f"{name} cannot become {level}: {why}.")


def _unsupported(image: Image, name: str, level: int) -> str | None:
    """Which brokers do not support that level, also of those that are down: they would not be let in again."""
    without = sorted(broker.node_id for broker in image.brokers.values() if not _supports(broker.features, name, level))
    if not without:
        return None
    who = ", ".join(map(str, without))
    return f"broker {who} does not support it: upgrade it first, or unregister it"


def _supports(features: Sequence[tuple[str, int, int]], name: str, level: int) -> bool:
    """Whether a broker that tells of these can live with that level. At level 0 a feature is not there."""
    low, high = next(((low, high) for known, low, high in features if known == name), (0, 0))
    # One that tells of none is older than features are.
    return not features or level == 0 or low <= level <= high


def check_supported(image: Image, node_id: int, features: Sequence[tuple[str, int, int]]) -> None:
    """Refuse a broker that does not support what is in effect: it would read the metadata and the logs wrongly."""
    for name, level in image.features.items():
        if not _supports(features, name, level):
            low, high = next(((low, high) for known, low, high in features if known == name), (0, 0))
            raise UnsupportedVersionError(
                f"Broker {node_id} supports {name} {low} to {high}, and the cluster is at {level}: start a version of "
                "it that supports that level."
            )
