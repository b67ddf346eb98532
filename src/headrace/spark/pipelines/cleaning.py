"""Records to typed columns, and for each record that does not fit the reasons why.

JSON by expressions of Spark only: a record is parsed once, with every field as text, and each text is then cast, so one
bad field is known by its name, where a typed parser only says that something was wrong. Records with a schema of a
registry are read as its newest one, and cast where other columns are wanted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.spark.pipelines.declaring import WrongOptionError
from headrace.spark.pipelines.running import line_of_spark
from headrace.words import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField, StructType

DEFAULT_SCHEMA = (
    "id STRING, at TIMESTAMP NOT NULL, event STRING NOT NULL, user STRING, page STRING, duration_ms BIGINT, "
    "host STRING, value DOUBLE"
)
"""User activity (who did what where, for how long) and system metrics (what was measured on which host) in one."""

ROW = "row"
PROBLEM = "problem"
_TEXTS = "_texts"
_BROKEN = "_broken"
_READ = "_read"
_SHOWN_CHARS = 40
_SECONDS_DIGITS_MAX = 11


_TYPES = (
    *(
        "STRING",
        "INT",
        "INTEGER",
        "BIGINT",
        "LONG",
        "SMALLINT",
        "SHORT",
        "TINYINT",
        "BYTE",
        "BOOLEAN",
        "DOUBLE",
        "FLOAT",
    ),
    *("REAL", "DECIMAL", "DEC", "NUMERIC", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "TIME", "BINARY"),
    *("CHAR", "CHARACTER", "VARCHAR", "ARRAY", "MAP", "STRUCT", "INTERVAL", "VARIANT", "VOID", "GEOMETRY", "GEOGRAPHY"),
)
_COLUMN = re.compile(r"\s*(?:`[^`]+`|\w+)\s*(?::\s*)?(\w+)\b")


def check_columns(ddl: str, flag: str) -> None:
    """Refuse the name of a type that there is none of. All else Spark itself says, once it runs."""
    depth, start = 0, 0
    columns = []
    for at, character in enumerate(ddl):
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            columns.append(ddl[start:at])
            start = at + 1
    for column in (*columns, ddl[start:]):
        found = _COLUMN.match(column)
        if found is not None and found[1].upper() not in _TYPES:
            near = did_you_mean(found[1].upper(), _TYPES)
            raise WrongOptionError(f"{flag}: {found[1]} is no type of Spark's, in {column.strip()!r}{near}")


def schema_of(ddl: str, session: SparkSession) -> StructType:
    """A schema in Spark's words: `name TYPE [NOT NULL], …`. Spark itself reads it, so it has to be running."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        schema = session.createDataFrame([], ddl).schema
    except PySparkException as error:
        why = line_of_spark(error)
        raise WrongOptionError(f"--schema {ddl!r} is not Spark's `name TYPE [NOT NULL], …`: {why}") from error
    if not isinstance(schema, StructType) or not schema.fields:
        raise WrongOptionError(f"--schema {ddl!r} has no columns")
    for field in schema.fields:
        if field.name == _BROKEN:
            raise WrongOptionError(f"--schema has a column {_BROKEN}, which is used here: name it otherwise")
    return schema


def cleaned(rows: DataFrame, schema: StructType) -> DataFrame:
    """Rows of a topic with two columns more: `row`, the typed values, and `problem`, why they are none (null: none)."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    texts = StructType(
        [*(StructField(one.name, StringType()) for one in schema.fields), StructField(_BROKEN, StringType())]
    )
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BROKEN}
    text = F.try_validate_utf8(F.col("value").cast("string"))
    parsed = rows.withColumn("_text", text).withColumn(_TEXTS, F.from_json("_text", texts, options))
    typed = F.struct(*(_typed(_field(one.name), one.dataType).alias(one.name) for one in schema.fields))
    return parsed.withColumn(ROW, typed).withColumn(PROBLEM, _problem(schema.fields)).drop("_text", _TEXTS)


def _field(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.col(_TEXTS).getField(name)


def _typed(text: Column, wanted: DataType) -> Column:
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType, TimestampType

    if isinstance(wanted, StringType):
        return text
    if isinstance(wanted, ArrayType | MapType | StructType):
        return F.from_json(text, wanted)
    if isinstance(wanted, TimestampType):
        number = text.try_cast("bigint")
        # Seconds until the year 5138 have at most 11 digits; with more they are milliseconds.
        counted = F.when(F.length(text) > _SECONDS_DIGITS_MAX, F.timestamp_millis(number)).otherwise(
            F.timestamp_seconds(number)
        )
        return F.when(number.isNotNull(), counted).otherwise(text.try_cast(wanted))
    return text.try_cast(wanted)


def _problem(fields: Sequence[StructField]) -> Column:
    """All that is wrong with a record, in a sentence each; null when nothing is."""
    from pyspark.sql import functions as F

    return (
        F.when(F.col("value").isNull(), F.lit("there is no value"))
        .when(F.col("_text").isNull(), F.lit("the value is not UTF-8"))
        .when(~F.ltrim("_text").startswith("{") | _field(_BROKEN).isNotNull(), F.lit("the value is not a JSON object"))
        .otherwise(_of_each(fields, _field))
    )


def _of_each(fields: Sequence[StructField], text_of: Callable[[str], Column]) -> Column:
    """What is wrong with the fields of a row. `text_of`: a field's value as it came, as text."""
    from pyspark.sql import functions as F

    def of(field: StructField) -> Column:
        text, value = text_of(field.name), F.col(ROW).getField(field.name)
        kind = field.dataType.simpleString()
        shown = F.substring(text, 1, _SHOWN_CHARS)
        wrong = F.when(text.isNotNull() & value.isNull(), F.concat(F.lit(f"{field.name} is not a {kind}: "), shown))
        return wrong if field.nullable else wrong.when(text.isNull(), F.lit(f"{field.name} is missing"))

    return F.nullif(F.concat_ws("; ", *(of(field) for field in fields)), F.lit(""))


# --- records with a schema of a registry ------------------------------------------------------------------------------


def schema_of_topic(registry: str, topic: str) -> StructType:
    """The columns that a topic's newest schema gives."""
    from pyspark.sql.types import StructType

    from headrace.spark.schemas import choose, spark_type

    kind = spark_type(choose(registry, subject=f"{topic}-value"))
    if not isinstance(kind, StructType):
        raise WrongOptionError(f"the schema of {topic} is {kind.simpleString()}: columns need a record with fields")
    return kind


def cleaned_by_registry(rows: DataFrame, registry: str, topic: str, schema: StructType) -> DataFrame:
    """As `cleaned`, for values whose schemas a registry has; `value` stays as it came."""
    from pyspark.sql import functions as F

    from headrace.spark.schemas import from_registry

    known = {one.name: one.dataType for one in schema_of_topic(registry, topic).fields}
    for one in schema.fields:
        if one.name not in known:
            near = did_you_mean(one.name, tuple(known))
            raise WrongOptionError(f"--schema names {one.name}, which the schema of {topic} has not{near}")

    def value_of(name: str) -> Column:
        return F.col(_READ).getField("value").getField(name)

    def text_of(name: str) -> Column:
        return _as_text(value_of(name), known[name])

    def typed(field: StructField) -> Column:
        is_so = known[field.name] == field.dataType
        return value_of(field.name) if is_so else _typed(text_of(field.name), field.dataType)

    error = F.col(_READ).getField("error")
    problem = (
        F.when(F.col("value").isNull(), F.lit("there is no value"))
        .when(error.isNotNull(), error)
        .otherwise(_of_each(schema.fields, text_of))
    )
    read = rows.withColumn(_READ, from_registry("value", registry, subject=f"{topic}-value"))
    row = F.struct(*(typed(one).alias(one.name) for one in schema.fields))
    return read.withColumn(ROW, row).withColumn(PROBLEM, problem).drop(_READ)


def _as_text(value: Column, kind: DataType) -> Column:
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StructType

    return F.to_json(value) if isinstance(kind, ArrayType | MapType | StructType) else value.cast("string")
