"""Spark on a Kafka that asks who it is: driver and tasks, and none of what they know where others can read it."""

from __future__ import annotations

import json
import logging
import re
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.secured.conftest import PASSWORD, PLAIN_MODULE, USER, SecuredKafka
from tests.secured.oauth import oauth_server, short_token

from headrace import Admin, Consumer, NewTopic, Producer
from headrace.client.admin import AclBinding, AclOperation, AclPermissionType, AclResourceType
from headrace.spark import exactly_once, session, write_once
from headrace.spark.pipelines import state as states
from headrace.spark.pipelines.mirror import mirror
from headrace.testing import Secured, broker

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.java,
    pytest.mark.timeout(600),
]

ROWS = [b"%d" % number for number in range(20)]
CLIENT_SECRET = "the secret of an OAuth client"


class Places:
    """Where a secret could be read afterwards, and what was found there so far."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.seen: dict[str, str] = {}
        self.secrets: set[str] = {PASSWORD, CLIENT_SECRET}

    def look(self, spark: Any, name: str, rows: Any) -> None:
        """At a DataFrame's plan, in all of its forms."""
        execution = rows._jdf.queryExecution()
        modes = spark._jvm.org.apache.spark.sql.execution.ExplainMode
        for mode in ("simple", "extended", "cost", "formatted"):
            self.seen[f"{name}, {mode}"] = execution.explainString(modes.fromString(mode))
        self.seen[f"{name}, as JSON"] = execution.optimizedPlan().toJSON()
        self.seen[name] = execution.toString() + repr(rows)

    def pages(self, spark: Any) -> None:
        """What Spark's console shows."""
        address, app = spark.sparkContext.uiWebUrl, spark.sparkContext.applicationId
        wanted = ["/jobs/", "/stages/", "/environment/", "/executors/", "/SQL/", "/StreamingQuery/"]
        wanted += [f"/api/v1/applications/{app}/{one}" for one in ("jobs", "stages", "environment")]
        wanted += [f"/api/v1/applications/{app}/sql?details=true&planDescription=true&length=1000"]
        for page in wanted:
            with urllib.request.urlopen(address + page, timeout=60) as answer:
                self.seen[page] = answer.read().decode()

    def files(self) -> None:
        for path in self.directory.rglob("*"):
            if path.is_file():
                self.seen[str(path)] = path.read_bytes().decode("latin1")

    def leaks(self) -> list[str]:
        forms = {form for secret in self.secrets for form in (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1])}
        return [name for name, text in self.seen.items() if any(form in text for form in forms)]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    return Places(tmp_path_factory.mktemp("places"))


@pytest.fixture(scope="module")
def spark(places: Places, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    (places.directory / "events").mkdir()
    log = logging.FileHandler(places.directory / "driver.log")
    logging.getLogger("headrace").addHandler(log)
    level = logging.getLogger("headrace").level
    logging.getLogger("headrace").setLevel(logging.DEBUG)
    config = {
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(places.directory / "events"),
        "spark.eventLog.compress": "false",
    }
    made = session("secured", master="local[2,4]", config=config)
    made.sparkContext.setLogLevel("ERROR")
    yield made
    made.stop()
    logging.getLogger("headrace").setLevel(level)
    logging.getLogger("headrace").removeHandler(log)
    log.close()


def filled(kafka: SecuredKafka) -> str:
    """A topic of two partitions with rows, made over the listener that asks nothing."""
    topic = f"t-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap_servers=kafka.kafka.address) as admin:
        admin.create_topics([NewTopic(name, 2) for name in (topic, f"{topic}-out", f"{topic}-once")]).all()
    with Producer(bootstrap_servers=kafka.kafka.address) as producer:
        for number, row in enumerate(ROWS):
            producer.send(topic, row, key=row, partition=number % 2)
    return topic


def test_the_example_of_the_page(secured_kafka: SecuredKafka, spark: Any) -> None:
    """docs/spark.md: what it says of a secured Kafka, pasted, with this one's names."""
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text("utf-8")
    section = page.split("## A secured Kafka")[1].split("\n## ")[0]
    (example,) = re.findall(r"^```python\n(.*?)^```$", section, re.S | re.M)
    here = {
        "kafka.example.com:9094": secured_kafka.at("SASL_SSL"),
        "/etc/kafka/ca.pem": str(secured_kafka.truststore),
        'username="me" password="my secret"': f'username="{USER}" password="{PASSWORD}"'.replace("'", r"\'"),
        '"clicks"': f'"{filled(secured_kafka)}"',
    }
    for written, real in here.items():
        assert written in example
        example = example.replace(written, real)
    names: dict[str, Any] = {"spark": spark}
    exec(example, names)
    assert sorted((bytes(row.value) for row in names["rows"].collect()), key=int) == ROWS


def values(kafka: SecuredKafka, topic: str) -> list[bytes]:
    found: list[bytes] = []
    config = {"bootstrap.servers": kafka.kafka.address, "isolation.level": "read_committed"}
    with Consumer(config | {"auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        while any(consumer.position(one) < end for one, end in consumer.end_offsets(consumer.assignment()).items()):
            found += [record.value for record in consumer.poll(1) if record.value is not None]
    return sorted(found, key=int)


def ways(kafka: SecuredKafka) -> dict[str, dict[str, str]]:
    """Ways to log in that options can say, by Kafka's names and by librdkafka's."""
    client = kafka.client
    scram = kafka.sasl("SCRAM-SHA-512", "SASL_SSL")
    plain = kafka.sasl("PLAIN")
    jaas = f'{PLAIN_MODULE} required username="{USER}" password="{PASSWORD}";'
    callback = f"{short_token.__module__}.{short_token.__name__}"
    return {
        "scram": scram,
        "jaas": {
            "bootstrap.servers": plain["bootstrap.servers"],
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": jaas,
        },
        "callback": kafka.sasl("OAUTHBEARER") | {"sasl.oauthbearer.token.callback": callback},
        "librdkafka": {
            "bootstrap.servers": kafka.at("SSL"),
            "security.protocol": "SSL",
            "ssl.ca.pem": kafka.authority.certificate,
            "ssl.key.pem": client.key,
            "ssl.certificate.pem": client.certificate,
        },
    }


def test_on_a_secured_broker_of_headrace(spark: Any, tmp_path: Path) -> None:
    """SASL_SSL, and rules that allow a user what a pipeline needs and nothing else."""
    secured = Secured("SASL_SSL", users={"admin": "admin-secret", "etl": "etl-secret"}, acls=True)
    with broker(security=secured) as kafka, Admin(kafka.client()) as admin:
        admin.create_topics([NewTopic(name, 2) for name in ("in", "out", "once")]).all()
        allowed = [
            (AclResourceType.TOPIC, "in", AclOperation.READ),
            (AclResourceType.TOPIC, "out", AclOperation.WRITE),
            (AclResourceType.TOPIC, "once", AclOperation.ALL),
            (AclResourceType.TOPIC, "headrace-spark-progress", AclOperation.ALL),
            (AclResourceType.TRANSACTIONAL_ID, "*", AclOperation.ALL),
            (AclResourceType.GROUP, "*", AclOperation.ALL),
        ]
        allow = AclPermissionType.ALLOW
        admin.create_acls([AclBinding(kind, name, "User:etl", may, allow) for kind, name, may in allowed]).all()
        with Producer(kafka.client()) as producer:
            for number, row in enumerate(ROWS):
                producer.send("in", row, key=row, partition=number % 2)
        config = {name.replace("ssl.ca.location", "ssl.truststore.location"): value
                  for name, value in kafka.client("etl", "SCRAM-SHA-512").items()}  # fmt: skip
        options = {f"kafka.{name}": value for name, value in config.items()}
        rows = spark.read.format("headrace").options(**options, subscribe="in").load()
        rows.select("key", "value").write.format("headrace").options(**options, topic="out").mode("append").save()
        write_once(rows.select("key", "value"), "once", config=config)
        for topic in ("out", "once"):
            with Consumer(kafka.client() | {"auto.offset.reset": "earliest"}) as consumer:
                consumer.assign([(topic, 0), (topic, 1)])
                found: list[bytes] = []
                while len(found) < len(ROWS):
                    found += [record.value for record in consumer.poll(30)]
                assert sorted(found, key=int) == ROWS
        with pytest.raises(Exception, match="uthoriz"):
            spark.read.format("headrace").options(**options, subscribe="out").load().collect()


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("scram", marks=pytest.mark.long),
        "jaas",
        "callback",
        pytest.param("librdkafka", marks=pytest.mark.long),
    ],
)
def test_source_and_sinks_in_batches_and_streams(
    secured_kafka: SecuredKafka, spark: Any, places: Places, way: str
) -> None:
    topic, config = filled(secured_kafka), ways(secured_kafka)[way]
    places.secrets.update(secured_kafka.client.key.splitlines()[1:-1])
    options = {f"kafka.{name}": value for name, value in config.items()}
    rows = spark.read.format("headrace").options(**options, subscribe=topic).load()
    places.look(spark, f"{way}: batch", rows)
    assert sorted(int(bytes(row.value)) for row in rows.collect()) == list(range(len(ROWS)))
    rows.select("key", "value").write.format("headrace").options(**options, topic=f"{topic}-out").mode("append").save()
    stream = spark.readStream.format("headrace").options(**options, subscribe=topic, startingOffsets="earliest").load()
    pairs = stream.select("key", "value")
    to_topic = pairs.writeStream.format("headrace").options(**options, topic=f"{topic}-out")
    sink = exactly_once(f"{topic}-once", config=config)
    once = pairs.writeStream.foreachBatch(sink)
    for name, writer in (("sink", to_topic), ("once", once)):
        place = str(places.directory / f"{way}-{name}")
        query = writer.option("checkpointLocation", place).trigger(availableNow=True).start()
        query.awaitTermination()
        places.seen[f"{way}: {name}"] = query._jsq.explainInternal(True)
        places.seen[f"{way}: {name}, progress"] = "".join(str(one) for one in query.recentProgress)
    sink.close()
    write_once(rows.select("key", "value"), f"{topic}-once", config=config)
    assert values(secured_kafka, f"{topic}-out") == sorted(ROWS * 2, key=int)
    assert values(secured_kafka, f"{topic}-once") == sorted(ROWS * 2, key=int)


def test_tasks_fetch_their_own_tokens_and_the_next_before_one_ends(
    secured_kafka: SecuredKafka, spark: Any, places: Places
) -> None:
    topic = filled(secured_kafka)
    with oauth_server() as server:
        config = {
            **secured_kafka.sasl("OAUTHBEARER"),
            "sasl.oauthbearer.token.endpoint.url": server.url,
            "sasl.oauthbearer.client.credentials.client.id": "spark",
            "sasl.oauthbearer.client.credentials.client.secret": CLIENT_SECRET,
            # So that every job has to log in again.
            "connections.max.idle.ms": "100",
        }
        del config["sasl.oauthbearer.token.callback"]
        options = {f"kafka.{name}": value for name, value in config.items()}
        rows = spark.read.format("headrace").options(**options, subscribe=topic).load()
        for number in range(3):
            assert rows.count() == len(ROWS)
            write_once(rows.select("key", "value"), f"{topic}-once", config=config, name=f"{topic}-{number}")
        assert server.given > 1
    assert values(secured_kafka, f"{topic}-once") == sorted(ROWS * 3, key=int)


def test_a_function_of_the_program_itself_travels_to_the_tasks(secured_kafka: SecuredKafka, spark: Any) -> None:
    topic = filled(secured_kafka)
    config = secured_kafka.sasl("OAUTHBEARER") | {"sasl.oauthbearer.token.callback": lambda: short_token()}
    rows = spark.createDataFrame([(row, row) for row in ROWS], "key BINARY, value BINARY")
    write_once(rows, f"{topic}-once", config=config)
    assert values(secured_kafka, f"{topic}-once") == ROWS


def test_a_wrong_password_is_said_in_the_first_line(secured_kafka: SecuredKafka, spark: Any, places: Places) -> None:
    wrong = "not the password at all"
    places.secrets.add(wrong)
    topic = filled(secured_kafka)
    config = {**secured_kafka.sasl("SCRAM-SHA-512"), "sasl.password": wrong}
    options = {f"kafka.{name}": value for name, value in config.items()}
    rows = spark.createDataFrame([(row,) for row in ROWS], "value BINARY")
    tries = (
        lambda: spark.read.format("headrace").options(**options, subscribe=topic).load().count(),
        lambda: rows.write.format("headrace").options(**options, topic=topic).mode("append").save(),
        lambda: write_once(rows, topic, config=config),
    )
    for number, attempt in enumerate(tries):
        with pytest.raises(Exception, match="refused the credentials") as refused:
            attempt()
        assert "refused the credentials" in str(refused.value).splitlines()[0]
        places.seen[f"wrong password {number}"] = str(refused.value) + repr(refused.value)


def test_a_pipeline(secured_kafka: SecuredKafka, spark: Any, places: Places) -> None:
    topic, config = filled(secured_kafka), ways(secured_kafka)["scram"]
    servers = config.pop("bootstrap.servers")
    result = mirror(
        servers,
        servers=servers,
        topics=[topic],
        rename="copy.{topic}",
        client_config=config,
        to_config=config,
        checkpoint=str(places.directory / "mirror"),
        session=spark,
    )
    places.seen["mirror"] = repr(result) + "".join(map(str, states.find([str(places.directory / "mirror")])))
    assert values(secured_kafka, f"copy.{topic}") == ROWS


def test_no_secret_was_left_anywhere(secured_kafka: SecuredKafka, spark: Any, places: Places) -> None:
    """After the tests above: plans, console, event log, checkpoints, logs, errors, states of pipelines."""
    places.pages(spark)
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    places.files()
    events = [name for name in places.seen if re.search(r"/events/", name)]
    assert any("SparkListenerSQLExecutionStart" in places.seen[name] for name in events)
    assert places.leaks() == []
