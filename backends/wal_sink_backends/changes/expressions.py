"""Events of Debezium as rows, in expressions of Spark. Imports pyspark."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame, types
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, StructType

from wal_sink.errors import ConfigError

_PLACEHOLDER = "__debezium_unavailable_value"
_ENCODED = base64.b64encode(_PLACEHOLDER.encode()).decode()
_NUMBERS = ",".join(str(byte) for byte in _PLACEHOLDER.encode())
_UNAVAILABLE = [
    _PLACEHOLDER,
    _ENCODED,
    json.dumps([_PLACEHOLDER]),
    json.dumps([_ENCODED]),
    json.dumps({_PLACEHOLDER: _PLACEHOLDER}, separators=(",", ":")),
    f"[{_NUMBERS}]",
]
"""The texts in an event in place of a value that the log of the source does not have: text, bytes, arrays, a map."""
_TIMES = frozenset({"date", "timestamp", "timestamp_ntz", "time"})


def rows_of_events(
    df: DataFrame,
    columns: str | StructType,
    keys: Sequence[str],
    connector: str,
    versions: Sequence[str],
    *,
    value: str,
    operation: str,
    name: str,
) -> DataFrame:
    """The result of `debezium`. `name`: that of the metrics. Raises `ConfigError`."""
    row = df.sparkSession.createDataFrame([], columns).schema
    _check(row, keys, operation, versions)
    events = _Events(row, keys, connector, versions)
    text = f.nullif(f.col(value).cast("string"), f.lit("null"))
    parsed = df.select(text.alias("value"), f.from_json(text, events.envelope, {"mode": "FAILFAST"}).alias("parsed"))
    fields = [f.col("parsed").getField(each).alias(each) for each in events.payload.names]
    payload = f.coalesce(f.col("parsed").getField("payload"), f.struct(*fields))
    told = parsed.select("value", payload.alias("event"))
    told = told.withColumn("kind", events.kind()).withColumn("texts", events.texts())
    counts = [
        f.count(f.lit(1)).alias("events"),
        f.count(f.when(f.col("kind") == "tombstone", 1)).alias("tombstones"),
        f.count(f.when(f.col("kind") == "heartbeat", 1)).alias("heartbeats"),
    ]
    kept = told.observe(name, *counts).where(~f.col("kind").isin("tombstone", "heartbeat"))
    rows = kept.select(f.explode(events.rows()).alias("row"), *events.version())
    shown = [f.col("row").getField("image").getField(each).alias(each) for each in row.names]
    return rows.select(*shown, f.col("row").getField("op").alias(operation), *versions)


def _check(row: StructType, keys: Sequence[str], operation: str, version: Sequence[str]) -> None:
    """Raise `ConfigError` for columns that an event cannot fill."""
    if not keys or not {*keys} <= {*row.names}:
        raise ConfigError(f"key={list(keys)}: expected names of columns, of {row.names}")
    names = [*row.names, operation, *version]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"columns: {twice[0]!r} occurs twice among the columns of the result, {names}")
    for field in row.fields:
        if _has_time(field.dataType):
            raise ConfigError(
                f"columns: {field.name!r} is {field.dataType.simpleString()}, but Debezium writes dates and times as "
                "numbers or texts. Name the column BIGINT, INT or STRING as the connector writes it, and convert it "
                "after this function, such as timestamp_micros(at)"
            )


def _has_time(kind: DataType) -> bool:
    """Whether a type is, or holds, a date or a time. Spark would read a number as seconds, whatever it means."""
    inner = [getattr(kind, name) for name in ("elementType", "keyType", "valueType") if hasattr(kind, name)]
    inner += [field.dataType for field in getattr(kind, "fields", [])]
    return kind.typeName() in _TIMES or any(map(_has_time, inner))


class _Events:
    """The expressions for events of one table, whose column `event` holds a payload."""

    def __init__(self, row: StructType, keys: Sequence[str], connector: str, versions: Sequence[str]) -> None:
        self._no = f.expr("false")
        self._row = row
        self._keys = keys
        self._connector = connector
        self._versions = versions
        text, number = types.StringType(), types.LongType()

        def struct(**fields: DataType) -> StructType:
            return types.StructType([types.StructField(name, kind) for name, kind in fields.items()])

        source = struct(connector=text, snapshot=text, lsn=number, file=text, pos=number, row=number, scn=text)
        self.payload = struct(before=row, after=row, source=source, op=text, ts_ms=number, ddl=text, status=text)
        self.envelope = types.StructType([*self.payload.fields, types.StructField("payload", self.payload)])
        values = types.MapType(text, text)
        images = struct(before=values, after=values)
        self._images = types.StructType([*images.fields, types.StructField("payload", images)])

    def _of(self, *path: str) -> Column:
        return reduce(lambda column, name: column.getField(name), path, f.col("event"))

    def kind(self) -> Column:
        """The kind of an event. That of a row's change is its operation."""
        is_bare = self._of("source").isNull() & self._of("before").isNull() & self._of("after").isNull()
        is_heartbeat = is_bare & self._of("ddl").isNull() & self._of("status").isNull() & self._of("ts_ms").isNotNull()
        found = self._of("source", "connector")
        return (
            f.when(f.col("value").isNull(), "tombstone")
            .when(self._of("op").isNull() & is_heartbeat, "heartbeat")
            .when(self._of("ddl").isNotNull(), "schema change")
            .when(self._of("op").isNull(), "no change event")
            .when(found != self._connector, f.concat(f.lit("event of connector "), found))
            .otherwise(self._of("op"))
        )

    def texts(self) -> Column:
        """Both images with each value as JSON text, of an event that may lack values; else NULL."""
        may_lack = reduce(or_, [f.col("value").contains(part) for part in (_PLACEHOLDER, _ENCODED, _NUMBERS)])
        parsed = f.from_json(f.col("value"), self._images, {"mode": "FAILFAST"})
        images = f.struct(parsed.getField("before").alias("before"), parsed.getField("after").alias("after"))
        return f.when(may_lack, f.coalesce(parsed.getField("payload"), images))

    def version(self) -> list[Column]:
        """The version columns. A snapshot is 0, and a change that has none is NULL, which sinks refuse."""
        snapshot = self._of("source", "snapshot")
        is_read = (self._of("op") == "r") | f.coalesce(~snapshot.isin("false", ""), self._no)
        file, scn = self._of("source", "file"), self._of("source", "scn")
        number = f.when(file.rlike(r"\.\d{1,18}$"), f.regexp_extract(file, r"(\d+)$", 1).cast("bigint"))
        found = {
            "source_lsn": self._of("source", "lsn"),
            "source_file": number,
            "source_pos": self._of("source", "pos"),
            "source_row": self._of("source", "row"),
            "source_scn": f.when(scn.rlike(r"^\d{1,18}$"), scn.cast("bigint")),
        }
        return [f.when(is_read, f.lit(0).cast("bigint")).otherwise(found[name]).alias(name) for name in self._versions]

    def rows(self) -> Column:
        """The row of an event; of an update that changed the key two of them."""
        op = f.col("kind")
        before, after = self._of("before"), self._image()
        old, new = [self._of("before", name) for name in self._keys], [self._of("after", name) for name in self._keys]
        is_known = reduce(and_, [column.isNotNull() for column in old])
        is_other = reduce(or_, [~one.eqNullSafe(other) for one, other in zip(old, new, strict=True)])
        deleted = f.struct(f.lit("d").alias("op"), before.alias("image"))
        single = f.struct(self._operation().alias("op"), f.when(op == "d", before).otherwise(after).alias("image"))
        return f.when((op == "u") & is_known & is_other, f.array(deleted, single)).otherwise(f.array(single))

    def _lacks(self, image: str, name: str) -> Column:
        """Whether an image lacks the value of a column."""
        value = f.col("texts").getField(image).getItem(name)
        return f.coalesce(value.isin(_UNAVAILABLE), self._no)

    def _image(self) -> Column:
        """The row after a change. A value that the event lacks did not change, so that before it is the same."""
        values = [
            f.when(self._lacks("after", name), self._of("before", name)).otherwise(self._of("after", name)).alias(name)
            for name in self._row.names
        ]
        return f.struct(*values)

    def _operation(self) -> Column:
        """The operation. It names a column whose value nobody can know, so that sinks refuse the row."""
        op = f.col("kind")
        unknown = [
            f.when(self._lacks("after", name) & (self._lacks("before", name) | self._of("before", name).isNull()), name)
            for name in self._row.names
        ]
        lacks = f.concat(op, f.lit(" without the unchanged value of "), f.concat_ws(", ", *unknown))
        is_lacking = f.concat_ws("", *unknown) != ""
        return f.when(op.isin("c", "r", "u") & is_lacking, lacks).otherwise(op)
