"""A PySpark `ForeachWriter`, or a function of one `Row`, as a sink; Arrow rows as PySpark `Row`s. Needs no JVM.

`spark_rows` gives rows as Spark's own writers of data sources get them. `rows_of` gives them as Spark's own `foreach`
does, whose rows travel pickled and not as Arrow.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyspark
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql import types as t

from wal_sink.errors import ConfigError, PermanentError
from wal_sink.sinks.base import SegmentSink, SinkContext
from wal_sink.spark.environment import version_of
from wal_sink.spark.schema import schema_from_json, type_modules
from wal_sink.support.arguments import check_ran
from wal_sink.support.arrow_types import retyped, viewed
from wal_sink.support.logs import logger_of
from wal_sink.support.texts import told

if TYPE_CHECKING:
    from wal_sink.sinks.chunk import Chunk

_logger = logger_of(__name__)

_UNREADABLE = (ValueError, OverflowError)  # what Arrow and `datetime` raise for a value that Python cannot hold
Convert = Callable[[Any], Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?")
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
_AS_BYTES = version_of(pyspark.__version__) >= (4, 1)
"""Binary values were `bytearray`s before (measured: 3.5.9, 4.0.1; since: 4.1.1, 4.3.0)."""
_OWN = {"GeometryType", "GeographyType"}
"""Types that only PySpark 4 has, and whose values PySpark's converter makes of Arrow's structs."""


def readable(make: Any, tables: Iterable[pa.Table], schema: t.StructType) -> Iterator[Row]:
    """The rows that `make` gives of the tables of one segment. Raises `PermanentError`, which names a row and a column,
    for a value that Python cannot hold, such as a year after 9999.
    """

    def fails(column: pa.Table, field: t.StructField) -> bool:
        try:
            return not list(make(column, t.StructType([field])))
        except _UNREADABLE:
            return True

    first = 0
    for table in tables:
        try:
            yield from make(table, schema)
        except _UNREADABLE as error:
            columns = ((table.select([place]), field) for place, field in enumerate(schema))
            column, field = next(one for one in columns if fails(*one))
            row = next(row for row in range(table.num_rows) if fails(column.slice(row, 1), field))
            raise PermanentError(
                f"row {first + row} of the segment, column {field.name!r}: Python cannot hold the value "
                f"({told(error)}), also not with Spark alone. Cast the column in the query"
            ) from error
        first += table.num_rows


def spark_rows(table: pa.Table, schema: t.StructType) -> Iterator[Row]:
    """The rows of `table`, whose columns are those of `schema` in order; on an executor or the driver.

    As in PySpark, instants become naive `datetime`s in this process's time zone, structs become `Row`s and maps
    `dict`s. The names are those of the schema, including equal and dotted ones.
    """
    return iter(conversion().convert(table, schema))


def conversion() -> Any:
    """PySpark's own converter (source, 4.0 to 4.3)."""
    from pyspark.sql.conversion import ArrowTableToRowsConversion  # noqa: PLC0415 - PySpark 3.5 has no such module

    return ArrowTableToRowsConversion


def rows_of(table: pa.Table, schema: t.StructType, zone: str | None = None) -> Iterator[Row]:
    """The rows of `table`, with the Python types that PySpark's own `foreach` gives. The order of a map's keys is that
    of the map, where Spark gives that of a hash table.

    Instants become naive, in this process's time zone (or in `zone`), with the `fold` of a repeated hour. Bytes that
    are not UTF-8 become U+FFFD, as Java has them.
    """
    local = _local if zone is None else _in_zone(_zone_of(zone))
    converts = [_convert(field.dataType, local) for field in schema.fields]
    values = [map(convert, _values(column)) for convert, column in zip(converts, table.columns, strict=True)]
    return (_row(schema.names, one) for one in zip(*values, strict=True))


def _row(names: list[str], values: Iterable[Any]) -> Row:
    row = Row(*values)
    row.__fields__ = names
    return row


def _values(column: Any) -> Any:
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        schema = pa.schema([("", retyped(column.type, _binary))])
        batches = pa.table([column], [""]).to_batches()
        return [value for batch in batches for value in viewed(batch, schema).column(0).to_pylist()]


def _binary(kind: Any) -> Any:
    if pa.types.is_large_string(kind):
        return pa.large_binary()
    return pa.binary() if pa.types.is_string(kind) else kind


def _text(value: str | bytes) -> str:
    """Java replaces an encoded surrogate as a whole, Python each of its bytes."""
    return value if isinstance(value, str) else _SURROGATE.sub(b"\xff", value).decode(errors="replace")


def _convert(kind: t.DataType, local: Convert) -> Convert:
    """How a value becomes what Spark gives. Arrow's value of a type that is not named here is that already."""
    made: dict[type[t.DataType], Callable[[Any], Convert]] = {
        t.StructType: lambda kind: _struct(kind, local),
        t.ArrayType: lambda kind: _list(kind, local),
        t.MapType: lambda kind: _map(kind, local),
        t.UserDefinedType: lambda kind: _user_defined(kind, local),
        t.StringType: lambda _: _text,
        t.BinaryType: lambda _: bytes if _AS_BYTES else bytearray,
        t.TimestampType: lambda _: local,
    }
    for known, make in made.items():
        if isinstance(kind, known):
            convert = make(kind)
            return lambda value: None if value is None else convert(value)
    if type(kind).__name__ == "VariantType":  # of `bytearray`s in every version
        variant: Any = t.VariantVal
        return lambda value: value and variant(bytearray(value["value"]), bytearray(value["metadata"]))
    if type(kind).__name__ in _OWN:
        return cast("Convert", conversion()._create_converter(kind))  # noqa: SLF001 - PySpark has no public way
    return lambda value: value


def _local(instant: datetime) -> datetime:
    """`astimezone` would forget which of two equal times of the day it is."""
    return datetime.fromtimestamp((instant - _EPOCH) // _SECOND).replace(microsecond=instant.microsecond)  # noqa: DTZ006


def _in_zone(zone: tzinfo) -> Convert:
    return lambda instant: instant.astimezone(zone).replace(tzinfo=None)


def _zone_of(name: str) -> tzinfo:
    """The time zone of a name that Spark takes, such as `GMT+8` or `Asia/Tokyo`; UTC if it is empty.

    Raises `PermanentError` if Python does not know it. Java knows more names, such as `PST`.
    """
    if name in {"", "Z", "UTC", "GMT", "UT"}:
        return UTC
    if found := _OFFSET.fullmatch(name):
        hours, minutes, seconds = (int(part or 0) for part in found.groups()[1:])
        ahead = timedelta(hours=hours, minutes=minutes, seconds=seconds)
        return timezone(ahead if found[1] == "+" else -ahead)
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError) as error:
        raise PermanentError(
            f"time zone {name!r} of the session that staged the rows: this Python does not know it. Install tzdata, "
            "or deliver on executors, which use their own time zone"
        ) from error


def _list(kind: t.ArrayType, local: Convert) -> Convert:
    element = _convert(kind.elementType, local)
    return lambda values: [element(value) for value in values]


def _map(kind: t.MapType, local: Convert) -> Convert:
    """Arrow gives pairs."""
    key, item = _convert(kind.keyType, local), _convert(kind.valueType, local)
    return lambda pairs: {key(one): item(other) for one, other in pairs}


def _user_defined(kind: t.UserDefinedType, local: Convert) -> Convert:
    inside, deserialize = _convert(kind.sqlType(), local), kind.deserialize
    return lambda value: deserialize(inside(value))


def _struct(kind: t.StructType, local: Convert) -> Convert:
    """Arrow gives a dict. Structs with two fields of one name are not staged."""
    fields = [(field.name, _convert(field.dataType, local)) for field in kind.fields]
    return lambda value: _row(kind.names, (convert(value[name]) for name, convert in fields))


def dumped(writer: object) -> bytes:
    """A user's writer, or what it returned, pickled for executors. Raises what its `__reduce__` raises."""
    return cast("bytes", cast("Any", cloudpickle).dumps(writer))


def unpickled(payload: bytes) -> Any:
    """A fresh copy of it."""
    return pickle.loads(payload)  # noqa: S301 - our own bytes, from the driver's memory


class ForeachWriterSink(SegmentSink):
    """Calls the writer as PySpark does: for each segment `open`, `process` for each row, `close`.

    On executors each segment gets a fresh copy of the writer, as each task does in PySpark. With `where="driver"`, or
    without a Spark session, the user's object itself is used, for one segment after the other.
    """

    needs_tasks = True

    def __init__(self, writer: object, *, name: str, idempotent: bool) -> None:
        """Raises `ConfigError` if `DataStreamWriter.foreach` would not take `writer`."""
        _check(writer)
        self._writer = writer
        self._name = name
        self._payload: bytes | None = None
        self._schema_json = ""
        self._zone: str | None = None
        self._type_modules: tuple[str, ...] = ()
        self.idempotent = idempotent

    def __repr__(self) -> str:
        return f"wrap.foreach_writer({self._name})"

    def wrapped_object(self) -> object:
        """The user's writer."""
        return self._writer

    describe = __repr__

    def __getstate__(self) -> dict[str, object]:
        payload = self._payload or dumped(self._writer)
        modules = self._type_modules or type_modules()  # the modules of the process that the user started
        return {**vars(self), "_writer": None, "_payload": payload, "_type_modules": modules}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Unpickle the writer at once, so that the check on an executor finds a writer that cannot be unpickled."""
        vars(self).update(state)
        self._writer = unpickled(cast("bytes", state["_payload"]))

    def open(self, context: SinkContext) -> None:
        """Remember the schema of the batch's rows. Raises `PermanentError` if it was staged without Spark."""
        if not context.spark_schema:
            raise PermanentError(f"batch {context.batch_id} was staged without Spark, so it has no Spark schema")
        self._schema_json = context.spark_schema
        self._zone = None if context.on_executor else context.time_zone

    def write_segment(self, ordinal: int, batch_id: int, chunks: Iterable[Chunk]) -> None:
        """Call `open`, `process` for each row, and `close`. An error is raised after `close` got it."""
        writer = self._writer if self._payload is None else unpickled(self._payload)
        schema = schema_from_json(self._schema_json, what=f"batch {batch_id}", modules=self._type_modules)
        rows = readable(partial(rows_of, zone=self._zone), (chunk.table for chunk in chunks), schema)
        if callable(writer):
            for row in rows:
                check_ran("the function", writer(row))
        else:
            _process(writer, ordinal, batch_id, rows)


def _process(writer: Any, ordinal: int, batch_id: int, rows: Iterable[Row]) -> None:
    """Call the writer as PySpark does: `close` follows every `open` that returned, with any result."""
    wanted = writer.open(ordinal, batch_id) if hasattr(writer, "open") else True
    check_ran("open", wanted)
    if wanted is None:
        _logger.warning(
            "%s.open(%s, %s) returned None. PySpark treats None as False, so the rows are skipped",
            type(writer).__name__,
            ordinal,
            batch_id,
        )
    close: Callable[[BaseException | None], object] = getattr(writer, "close", _nothing)
    try:
        if wanted:
            for row in rows:
                check_ran("process", writer.process(row))
    except BaseException as error:
        close(error)
        raise
    check_ran("close", close(None))


def _check(writer: object) -> None:
    if isinstance(writer, type):
        raise ConfigError(f"{writer.__name__} is a class: pass an instance, {writer.__name__}(…)")
    if callable(writer):
        return
    kind = type(writer).__name__
    if not hasattr(writer, "process"):
        raise ConfigError(f"{kind} has no process(row): expected a ForeachWriter or a function of one Row")
    for method in ("open", "process", "close"):
        if not callable(getattr(writer, method, _nothing)):
            raise ConfigError(f"{kind}.{method} cannot be called: expected a method")


def _nothing(_: BaseException | None) -> None:
    return
