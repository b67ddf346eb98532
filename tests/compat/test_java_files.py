"""Apache Kafka's DumpLogSegments reads every file that our broker wrote, and finds nothing to complain of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from bench.peers import kafka_libs, why_no_kafka

from headrace.testing import broker

from .clients import (
    CODECS,
    PYTHON_CLIENTS,
    TIMEOUT_S,
    confluent_consumer,
    confluent_producer,
    create_topic,
    poll_confluent,
    sample,
)
from .java_tools import JavaTools

pytestmark = [
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.skipif(kafka_libs() is None, reason=why_no_kafka()),
]
COMPLAINTS = re.compile(
    r"mismatch|exception|not valid|invalid|corrupt|Non-consecutive|isvalid: false|out of order|fail|could not|unknown",
    re.IGNORECASE,
)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaTools]:
    with JavaTools(tmp_path_factory.mktemp("tools") / "errors") as running:
        yield running


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a broker that had topics of every codec, several segments, groups, transactions."""
    directory = tmp_path_factory.mktemp("written") / "data"
    with broker(
        str(directory), {"offsets.topic.num.partitions": "2", "transaction.state.log.num.partitions": "2"}
    ) as kafka:
        for codec in CODECS:
            create_topic(kafka.address, codec, retention_ms="-1", segment_bytes="1048576", index_interval_bytes="1000")
            for _ in range(3):
                messages = sample(1200, size=800)
                PYTHON_CLIENTS[0].produce(kafka.address, codec, messages, codec, **{"batch.size": 20_000})
        _use_a_group(kafka.address)
        _use_transactions(kafka.address)
    return directory


def _use_a_group(address: str) -> None:
    consumer = confluent_consumer(address, "group")
    consumer.subscribe(["none"])
    poll_confluent(consumer, 10)
    consumer.commit(asynchronous=False)
    consumer.close()
    gone = confluent_kafka.admin.AdminClient({"bootstrap.servers": address})
    other = confluent_consumer(address, "gone")
    other.commit(offsets=[confluent_kafka.TopicPartition("gzip", 0, 3)], asynchronous=False)
    other.close()
    gone.delete_consumer_groups(["gone"])["gone"].result(TIMEOUT_S)


def _use_transactions(address: str) -> None:
    create_topic(address, "transactions")
    producer = confluent_producer(address, **{"transactional.id": "writer"})
    producer.init_transactions(TIMEOUT_S)
    for number, ends in enumerate([producer.commit_transaction, producer.abort_transaction] * 2):
        producer.begin_transaction()
        producer.produce("transactions", b"%d" % number, partition=0)
        producer.flush(TIMEOUT_S)
        ends(TIMEOUT_S)


def dump(tools: JavaTools, files: list[Path], *options: str) -> str:
    assert files
    printed = tools.run("kafka-dump-log", *options, "--files", ",".join(map(str, files)))
    # Values may have one of these words in them; a segment that does not begin at 0 always "follows" -1.
    first_of_segment = r"Non-consecutive offsets in .*\n  -1 is followed by \d+\n(?!  )"
    told = re.sub(rf"payload: .*|SLF4J: .*|{first_of_segment}", "", printed)
    assert not COMPLAINTS.search(told), COMPLAINTS.search(told)
    return printed


def logs_of(directory: Path, pattern: str) -> list[Path]:
    return sorted(path for path in directory.glob(f"{pattern}/*.log") if path.stat().st_size)


def test_every_record_is_printed_and_valid(tools: JavaTools, written: Path) -> None:
    for codec in CODECS:
        files = logs_of(written, f"{codec}-0")
        text = dump(tools, files, "--deep-iteration", "--print-data-log")
        assert len(files) > 1 or codec != "none"
        assert text.count("| offset:") == 3600
        assert text.count("isvalid: true") == text.count("baseOffset:")
        assert text.count(f"compresscodec: {codec}") > 0
    text = dump(tools, logs_of(written, "transactions-0"), "--deep-iteration", "--print-data-log")
    assert text.count("endTxnMarker: COMMIT") == 2
    assert text.count("endTxnMarker: ABORT") == 2


def test_indexes_are_sane_and_agree_with_their_logs(tools: JavaTools, written: Path) -> None:
    topics = [*CODECS, "transactions"]
    indexes = [path for topic in topics for path in sorted(written.glob(f"{topic}-0/*.*index")) if path.stat().st_size]
    sane = [path for path in indexes if path.suffix != ".txnindex"]
    text = dump(tools, sane, "--index-sanity-check")
    assert text.count("passed sanity check") == len(sane) > 10
    dump(tools, sane, "--verify-index-only")
    of_transactions = [path for path in indexes if path.suffix == ".txnindex"]
    assert dump(tools, of_transactions).count("producerId") == 2


def test_snapshots_of_producers_are_read(tools: JavaTools, written: Path) -> None:
    text = dump(tools, sorted(written.glob("transactions-0/*.snapshot")))
    assert text.count("producerId:") == 1


def test_the_offsets_topic_is_decoded(tools: JavaTools, written: Path) -> None:
    text = dump(tools, logs_of(written, "__consumer_offsets-*"), "--offsets-decoder", "--deep-iteration")
    assert '"group":"group"' in text
    assert '"topic":"none"' in text
    assert re.search(r'"group":"gone".*payload:? ?(<DELETE>|null|)', text)
    assert '"protocolType":"consumer"' in text


def test_the_transaction_log_is_decoded(tools: JavaTools, written: Path) -> None:
    text = dump(tools, logs_of(written, "__transaction_state-*"), "--transaction-log-decoder", "--deep-iteration")
    assert '"transactionalId":"writer"' in text


def test_the_metadata_log_is_decoded(tools: JavaTools, written: Path) -> None:
    text = dump(tools, logs_of(written, "__cluster_metadata-0"), "--cluster-metadata-decoder", "--deep-iteration")
    for kind in ("TOPIC_RECORD", "PARTITION_RECORD", "CONFIG_RECORD", "REGISTER_BROKER_RECORD", "FEATURE_LEVEL_RECORD"):
        assert f'"type":"{kind}"' in text, kind
    assert '"name":"transactions"' in text
    assert '"type":"PRODUCER_IDS_RECORD"' in text


def test_checkpoints_are_kafkas(written: Path) -> None:
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint"):
        lines = (written / name).read_text().splitlines()
        assert lines[0] == "0"
        assert int(lines[1]) == len(lines) - 2
    assert re.search(r"^cluster.id=\S{22}$", (written / "meta.properties").read_text(), re.MULTILINE)
