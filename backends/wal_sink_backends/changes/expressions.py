"""Events of Debezium as rows, in expressions of Spark. Imports pyspark."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame, types
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, StructType

from wal_sink.errors import ConfigError

_PLACEHOLDER = "__debezium_unavailable_value"
_BYTES = _PLACEHOLDER.encode()
_TEXTS = [_PLACEHOLDER, base64.b64encode(_BYTES).decode(), _BYTES.hex(), "b68a35a7-17ad-35b3-af2a-ae46edb4545a"]
"""In place of a value that the log of the source does not have: text, bytes in base64 or hex, the text's UUID."""
_NUMBERS = r"(\.0)?\s*,\s*".join(map(str, _BYTES))
_ARRAYS = [*(f'["{text}"]' for text in _TEXTS), f"[{','.join(map(str, _BYTES))}]"]
_UNAVAILABLE = [*_TEXTS, *_ARRAYS, f'{{"{_PLACEHOLDER}":"{_PLACEHOLDER}"}}']
"""All of them as JSON, without blanks and `.0`."""
_TIME = "Debezium writes dates and times as numbers or texts. Name the column BIGINT, INT or STRING as the event has it"
_UNFIT = {
    **dict.fromkeys(("date", "timestamp", "timestamp_ntz", "time"), _TIME),
    "byte": "Spark wraps a larger number, 200 to -56. Name the column SMALLINT or INT",
    "decimal": "Spark rounds a number, 19.99 to 20. Name the column STRING",
}
"""The types that no column can have, since Spark would read another value than the event's; and why."""


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
    listed = f.concat(f.lit("["), text, f.lit("]"))  # so that text behind the event is malformed
    found = f.from_json(listed, types.ArrayType(events.envelope), {"mode": "FAILFAST"})
    parsed = f.when(f.size("found") == 1, f.get("found", f.lit(0)))
    fields = [parsed.getField(each).alias(each) for each in events.payload.names]
    payload = f.coalesce(parsed.getField("payload"), f.struct(*fields))
    told = df.select(text.alias("value"), found.alias("found")).select("value", payload.alias("event"))
    told = told.withColumn("kind", events.kind()).withColumn("texts", events.texts())
    left_out = [f.count(f.when(f.col("kind") == each, 1)).alias(f"{each}s") for each in ("tombstone", "heartbeat")]
    kept = told.observe(name, f.count(f.lit(1)).alias("events"), *left_out).where(
        ~f.col("kind").isin("tombstone", "heartbeat")
    )
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
        if why := next(filter(None, map(_UNFIT.get, _types_in(field.dataType))), None):
            raise ConfigError(
                f"columns: {field.name!r} is {field.dataType.simpleString()}, but {why}, and convert it later"
            )


def _types_in(kind: DataType) -> Iterator[str]:
    """Yield the name of a type, and of those in it."""
    yield kind.typeName()
    inner = [getattr(kind, name) for name in ("elementType", "keyType", "valueType") if hasattr(kind, name)]
    for each in [*inner, *(field.dataType for field in getattr(kind, "fields", []))]:
        yield from _types_in(each)


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
        self.payload = struct(before=row, after=row, source=source, op=text, ts_ms=number, ddl=text)
        self.envelope = types.StructType([*self.payload.fields, types.StructField("payload", self.payload)])
        images = struct(**dict.fromkeys(("before", "after"), types.MapType(text, text)))
        self._images = types.StructType([*images.fields, types.StructField("payload", images)])

    def _of(self, *path: str) -> Column:
        return reduce(lambda column, name: column.getField(name), path, f.col("event"))

    def kind(self) -> Column:
        """The kind of an event. That of a row's change is its operation."""
        fields = f.json_object_keys(f.coalesce(f.get_json_object("value", "$.payload"), f.col("value")))
        is_heartbeat = self._of("ts_ms").isNotNull() & (fields == f.array(f.lit("ts_ms")))
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
        may_lack = reduce(or_, map(f.col("value").contains, _TEXTS)) | f.col("value").rlike(_NUMBERS)
        parsed = f.from_json("value", self._images, {"mode": "FAILFAST"})
        images = f.struct(*[parsed.getField(each).alias(each) for each in ("before", "after")])
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
        op, before, after = f.col("kind"), self._of("before"), self._image()
        is_other = reduce(or_, [~before.getField(name).eqNullSafe(after.getField(name)) for name in self._keys])
        is_moved = (op == "u") & self._knows_old_key() & is_other
        deleted = f.struct(f.lit("d").alias("op"), before.alias("image"))
        single = f.struct(self._operation().alias("op"), f.when(op == "d", before).otherwise(after).alias("image"))
        return f.when(is_moved, f.array(deleted, single)).otherwise(f.array(single))

    def _lacks(self, image: str, name: str) -> Column:
        """Whether an image lacks the value of a column."""
        value = f.regexp_replace(f.col("texts").getField(image).getItem(name), r"\s|\.0(?=[,\]])", "")
        return f.coalesce(value.isin(_UNAVAILABLE), self._no)

    def _knows_old_key(self) -> Column:
        """Whether the before-image has the key."""
        return reduce(
            and_, [self._of("before", each).isNotNull() & ~self._lacks("before", each) for each in self._keys]
        )

    def _image(self) -> Column:
        """The row after a change. A value that the event lacks did not change, so that before it is the same."""
        values = [
            f.when(self._lacks("after", name), self._of("before", name)).otherwise(self._of("after", name)).alias(name)
            for name in self._row.names
        ]
        return f.struct(*values)

    def _operation(self) -> Column:
        """The operation. It says so if nobody can know a column or the old key, so that sinks refuse the row."""
        op = f.col("kind")
        unknown = [
            f.when(self._lacks("after", name) & (self._lacks("before", name) | self._of("before", name).isNull()), name)
            for name in self._row.names
        ]
        lacks = f.concat(op, f.lit(" without the unchanged value of "), f.concat_ws(", ", *unknown))
        is_lacking = f.concat_ws("", *unknown) != ""
        is_keyless = (op == "u") & self._of("before").isNotNull() & ~self._knows_old_key()
        found = f.when(op.isin("c", "r", "u") & is_lacking, lacks).when(is_keyless, "u without the old key")
        return found.otherwise(op)
