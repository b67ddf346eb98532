"""Clicks of a topic as a table, those that can be read; and back to a topic, as JSON."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()

SERVERS = os.environ.get("HEADRACE_BOOTSTRAP", "localhost:9092")
CLICK = "user STRING, page STRING, at TIMESTAMP"


@dp.table
def clicks() -> DataFrame:
    """Every click once: a streaming table, whose place in the topic is kept in the pipeline's storage."""
    records = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", SERVERS)
        .option("subscribe", "clicks")
        .option("startingOffsets", "earliest")
        .load()
    )
    click = F.from_json(F.col("value").cast("string"), CLICK)
    return records.select(click.alias("click"), "partition", "offset").where("click.user is not null").select("click.*")


dp.create_sink("clean_clicks", "headrace", {"kafka.bootstrap.servers": SERVERS, "topic": "clean-clicks"})


@dp.append_flow(target="clean_clicks")
def to_topic() -> DataFrame:
    """At least once, as sinks of declarative pipelines are: for exactly once see `headrace.spark.exactly_once`."""
    return spark.readStream.table("clicks").select(F.col("user").alias("key"), F.to_json(F.struct("*")).alias("value"))
