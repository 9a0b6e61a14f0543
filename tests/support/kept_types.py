"""The page docs/sinks/types.md: what becomes of a value of each Spark type in each kind of column, measured.

`python -m tests.support.kept_types --write` starts the servers and a Spark, writes each type into each kind of column
through the sink, reads it back with the target's usual client, and writes the page. A value comes back equal, is
refused (the column, or its row), or is spelled in another way. `SPELLINGS` lists the last kind, and no others pass:
tests/integration/test_kept_types.py compares it, and the page, with what it measures.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa

from tests.house.sinks import Rejected
from tests.support.chunks import CONTEXT, chunk
from tests.support.processes import CHECKOUT
from tests.support.servers.databases import PASSWORD, PASSWORD_VARIABLE, MariadbServer, PostgresqlServer, servers_folder
from tests.support.sql_chunks import as_owner, sink_to
from wal_sink.errors import PermanentError
from wal_sink_backends import FilesSink
from wal_sink_backends.sql.base import types
from wal_sink_backends.sql.sink import SqlSink
from wal_sink_backends.sql.sqlite import Sqlite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = CHECKOUT / "docs/sinks/types.md"
COMMAND = "python -m tests.support.kept_types --write"
HEAD = f"""\
<!-- Made by `{COMMAND}`, which measures it. -->

# Types: what is kept, refused, or spelled otherwise

Values of each type, extremes among them, were written into each kind of column and read back with
psycopg, PyMySQL, Python's sqlite3, and for files with Spark. `make test-all` measures it again.
**Made** is the column that the sink makes. **Kept** means that equal values came back, and that rows
with other values were refused. A type that stands in no cell of a line is refused as a column,
before anything is written.

Every sink except the wrapped writers refuses a VARIANT before the query runs (over Spark Connect at
the first delivery): write `to_json(v)`. An interval of years and months, and Spark's `interval`
without a unit, cannot be staged: cast them to a string. A GEOMETRY or GEOGRAPHY comes as a struct of
`srid` and `wkb`, a string without its collation, a TIME as Arrow's time. Kafka, Redis, web APIs and
DynamoDB get [JSON](#files).
"""

MADE = "made"
Verdict: TypeAlias = Literal["kept", "refused", "spelled"]

_TEXTS = ["a", "", " b  ", "10", "16777217", "1.50", "true", "{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}",
          "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A12", "::FFFF:1.2.3.4",
          "08002b:010203", '{"b": 1, "a": 1.0}', '<?xml version="1.0" encoding="ISO-8859-1"?><a>x</a>', "{a, b}",
          "2024-01-01", "0:0::1", "x" * 255 + "  ", "ok", "É'\\\n\t"]  # fmt: skip
_INSTANT, _LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
_SPACE = pa.struct([pa.field("srid", pa.int32()), pa.field("wkb", pa.binary())])
_POINT = {"srid": 4326, "wkb": bytes.fromhex("0101000000000000000000F03F0000000000000040")}
VALUES: Mapping[str, pa.Array[Any]] = {
    "boolean": pa.array([True, False]),
    "tinyint": pa.array([-128, 127, 1], pa.int8()),
    "smallint": pa.array([-(2**15), 2**15 - 1, 1], pa.int16()),
    "int": pa.array([-(2**31), 2**31 - 1, 16777217, 1], pa.int32()),
    "bigint": pa.array([-(2**63), 2**63 - 1, 2**53 + 1, 1], pa.int64()),
    "float": pa.array([16777216, 0.1, 1e-40, 1.5], pa.float32()),
    "double": pa.array([0.1, 1e300, 2.0**53, 1.5], pa.float64()),
    "decimal(20,10)": pa.array([Decimal("0.1234567891"), Decimal(-9999999999), Decimal(1)], pa.decimal128(20, 10)),
    "string": pa.array(_TEXTS),
    "binary": pa.array([b"\0\xff", b"a", b"", b"b \0"]),
    "date": pa.array([dt.date(1, 1, 1), dt.date(2024, 2, 29), dt.date(9999, 12, 31)]),
    "timestamp": pa.array([1_700_000_000_123_456, -1, 0], _INSTANT),
    "timestamp_ntz": pa.array([1_700_000_000_123_456, -1, 0], _LOCAL),
    "interval day to second": pa.array([1_500_000, -93_784_000_001, 0], pa.duration("us")),
    "array<int>": pa.array([[1, None], []], pa.list_(pa.int32())),
    "array<string>": pa.array([["a", 'b,"c', None, "NULL"], []]),
    "array<array<int>>": pa.array([[[1], []]], pa.list_(pa.list_(pa.int32()))),
    "map<string,int>": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int32())),
    "struct<a:int>": pa.array([{"a": 1}, {"a": None}], pa.struct([("a", pa.int32())])),
    "geometry": pa.array([_POINT], _SPACE),
    "void": pa.nulls(1),
}
"""Values of each type that a segment may hold, as Spark's Arrow has them; a NULL is added to each."""

POSTGRESQL = (
    *("boolean", "smallint", "integer", "bigint", "numeric", "numeric(20,10)", "numeric(10,2)", "real"),
    *("double precision", "text", "varchar(256)", "char(300)", "bpchar", "name", "uuid", "json", "jsonb", "xml"),
    *("inet", "cidr", "macaddr", "mood", "bytea", "date", "timestamp", "timestamptz", "timestamp(3)", "time"),
    *("interval", "bit(8)", "money", "text[]", "integer[]", "jsonb[]", "int4range", "moods"),
)
MARIADB = (
    *("boolean", "tinyint", "smallint", "mediumint", "int", "bigint", "bigint unsigned", "decimal(20,10)"),
    *("decimal(10,2)", "float", "double", "char(200)", "varchar(256)", "tinytext", "text", "longtext", "json", "uuid"),
    *("inet6", "enum('ok','10')", "set('ok','10')", "binary(4)", "varbinary(300)", "blob", "date", "datetime"),
    *("datetime(6)", "timestamp(6)", "time(6)", "year", "bit(8)"),
)
SQLITE = ("INTEGER", "REAL", "NUMERIC", "TEXT", "BLOB", "VARCHAR(9)", "BOOLEAN", "DATETIME", "JSON", "")
FORMATS: tuple[Literal["csv", "jsonl", "parquet"], ...] = ("csv", "jsonl", "parquet")
SPARK = {"geometry": "struct<srid:int,wkb:binary>", "void": "int"}
"""By which type Spark reads a file, where it is not the type of the query."""
_AS_THE_SERVER = "as the server spells it"
SPELLINGS: Mapping[str, Mapping[str, str]] = {
    "PostgreSQL": {
        "char(300)": "padded with blanks",
        "varchar(256)": "without blanks behind its length",
        "json": "a document with the same text",
        "jsonb": "a document with the same values",
        **dict.fromkeys(("uuid", "inet", "macaddr"), _AS_THE_SERVER),
    },
    "MariaDB": {
        "char(200)": "without blanks at its end",
        "varchar(256)": "without blanks behind its length",
        **dict.fromkeys(("uuid", "inet6"), _AS_THE_SERVER),
        "timestamp": "in UTC, without a zone",
        "interval day to second": "ISO 8601",
    },
    "SQLite": {
        "decimal(20,10)": "its digits as text",
        "date": "ISO 8601",
        "timestamp": "ISO 8601, in UTC",
        "timestamp_ntz": "ISO 8601",
        "interval day to second": "ISO 8601",
    },
    "csv": {"binary": "Base64", "interval day to second": "ISO 8601; NULL to Spark, unless it reads a string"},
    "jsonl": {"interval day to second": "ISO 8601; NULL to Spark, unless it reads a string"},
    "parquet": {"interval day to second": "a duration to Arrow, a bigint of microseconds to Spark"},
}
"""By target, and by column or type: how a value comes back that is kept in another spelling."""


@dataclass(frozen=True, slots=True)
class Target:
    """A database, through its usual client."""

    columns: Sequence[str]
    sink: Callable[[str], SqlSink]
    run: Callable[[str], object]
    read: Callable[[str], list[tuple[Any, ...]]]
    made: Callable[[Any], str]
    """The type of a column that the sink makes for an Arrow type."""


def measured(target: Target) -> dict[tuple[str, str], Verdict]:
    """Write each type into each kind of column, and into the one that the sink makes, `MADE`."""
    found: dict[tuple[str, str], Verdict] = {}
    tables = count()
    for kind, values in VALUES.items():
        for column in (MADE, *target.columns):
            table = f"t{next(tables)}"
            if column != MADE:
                target.run(f"CREATE TABLE {table} (n int, v {column})")
            found[kind, column] = _written(target, table, values)
    return found


def _rows(values: Any) -> pa.Table:
    """Return a table of numbered values, and of a NULL."""
    numbers = pa.array(range(len(values) + 1), pa.int32())
    return pa.table({"n": numbers, "v": pa.concat_arrays([values, pa.nulls(1, values.type)])})


def _written(target: Target, table: str, values: Any) -> Verdict:
    sent, sink = chunk(_rows(values), slot=table), target.sink(table)  # the ledger would know the rows of another table
    sink.open(CONTEXT)
    try:
        if isinstance(rejected := sink.write(sent), Rejected):
            sent = sent.without(list(rejected.reasons))
            assert sink.write(sent) is None
    except PermanentError as error:
        if "would alter" not in str(error):
            raise
        return "refused"
    finally:
        sink.close()
    rows: list[dict[str, Any]] = sent.table.to_pylist()
    if all(row["v"] is None for row in rows) and not pa.types.is_null(values.type):
        return "refused"
    back, texts = (
        dict(target.read(f"SELECT n, v FROM {table}")),
        {row["n"]: row["v"] for row in json.loads(sent.to_json())},
    )
    assert back.keys() == texts.keys()
    same = [_is_same(row["v"], texts[row["n"]], back[row["n"]], values.type) for row in rows]
    return "kept" if all(same) else "spelled"


def _is_same(sent: Any, text: Any, got: Any, kind: Any) -> bool:
    """Whether the client got the value. Lists, maps and structs come as they are, as JSON, or as what it says."""
    if pa.types.is_nested(kind) and sent is not None:
        return bool(got == sent or text == (json.loads(got) if isinstance(got, str) else got))
    if pa.types.is_floating(kind) and isinstance(got, (int, float, Decimal)):
        return bool(pa.scalar(float(got), kind).equals(pa.scalar(sent, kind)))
    return bool(got == sent)


@contextmanager
def databases(postgresql: PostgresqlServer, mariadb: MariadbServer, folder: Path) -> Iterator[dict[str, Target]]:
    """The targets, on two servers and in a folder."""
    pg, maria, file = postgresql.new_database(), mariadb.new_database(), folder / "rows.db"
    as_owner(postgresql, pg, "CREATE TYPE mood AS ENUM ('ok', 'bad')", "CREATE DOMAIN moods AS mood")
    with closing(sqlite3.connect(file, isolation_level=None)) as lite:
        yield {
            "PostgreSQL": Target(
                POSTGRESQL,
                lambda table: sink_to(postgresql, pg, table),
                lambda statement: as_owner(postgresql, pg, statement),
                lambda query: postgresql.query(pg, query),
                lambda kind: types.POSTGRESQL.name_of(kind, False),
            ),
            "MariaDB": Target(
                MARIADB,
                lambda table: sink_to(mariadb, maria, table),
                lambda statement: mariadb.query(maria, statement),
                lambda query: mariadb.query(maria, query),
                lambda kind: types.MARIADB.name_of(kind, False),
            ),
            "SQLite": Target(
                SQLITE,
                lambda table: SqlSink(f"sqlite:///{file}", table),
                lite.execute,
                lambda query: lite.execute(query).fetchall(),
                Sqlite("", "", 0).type_name,
            ),
        }


def measured_files(spark: SparkSession, folder: Path) -> dict[tuple[str, str], Verdict]:
    """Write each type into a file of each format, and read it with Spark."""
    found: dict[tuple[str, str], Verdict] = {}
    for kind, values in VALUES.items():
        for form in FORMATS:
            to, sent = folder / f"{form}-{len(found)}", chunk(_rows(values))
            sink = FilesSink(str(to), format=form, name_template="{key}.{ext}")
            sink.open(CONTEXT)
            try:
                sink.write(sent)
            except PermanentError as error:
                if "CSV has no nested values" not in str(error):
                    raise
                found[kind, form] = "refused"
            else:
                found[kind, form] = "kept" if _is_read(spark, to, form, kind, sent.table) else "spelled"
            finally:
                sink.close()
    return found


def _is_read(spark: SparkSession, folder: Path, form: str, kind: str, rows: pa.Table) -> bool:
    """Whether Spark reads the rows: of Parquet by the type that it finds, of other files by the query's."""
    expected, reader = SPARK.get(kind, kind), spark.read
    if form == "csv":
        reader = reader.options(header=True, multiLine=True, escape='"', nullValue="\0", emptyValue="")
    if form != "parquet":
        reader = reader.schema(f"n int, v {expected}")
    back = reader.format("json" if form == "jsonl" else form).load(str(folder)).orderBy("n")
    return (
        back.schema["v"].dataType.simpleString() == expected
        and back.toArrow()["v"].to_pylist() == rows["v"].to_pylist()
    )


Found: TypeAlias = "Mapping[str, Mapping[tuple[str, str], Verdict]]"
"""By target: the verdict on each type in each kind of column, or in the file of a format."""


def faults(found: Found) -> list[str]:
    """List values that came back otherwise without a word, and words about what did not."""
    seen = {
        (target, name)
        for target, verdicts in found.items()
        for (kind, column), verdict in verdicts.items()
        if verdict == "spelled"
        for name in [_spelled_by(target, kind, column) or f"{kind} into {column}"]
    }
    told = {(target, name) for target, names in SPELLINGS.items() for name in names}
    return sorted(f"{target}: {name}" for target, name in seen ^ told)


def _spelled_by(target: str, kind: str, column: str) -> str:
    """Return the name in `SPELLINGS`: the type, else the column."""
    return next((name for name in (kind, column) if name in SPELLINGS[target]), "")


def page(found: Found, targets: Mapping[str, Target]) -> str:
    """Return the text of the page."""
    parts = [HEAD]
    for name, target in targets.items():
        lines: dict[tuple[str, ...], list[str]] = {}
        for kind, values in VALUES.items():
            its = {column: verdict for (of, column), verdict in found[name].items() if of == kind}
            said = SPELLINGS[name][_spelled_by(name, kind, MADE)] if its[MADE] == "spelled" else ""
            kept = [f"`{column or '(none)'}`" for column in target.columns if its[column] == "kept"]
            kept = ["every column"] if len(kept) == len(target.columns) else kept
            others: dict[str, list[str]] = {}
            for column in target.columns:
                if its[column] == "spelled":
                    others.setdefault(SPELLINGS[name][_spelled_by(name, kind, column)], []).append(
                        f"`{column or '(none)'}`"
                    )
            spelled = "; ".join(f"{', '.join(columns)}: {how}" for how, columns in others.items())
            made = f"{target.made(values.type)}{f': {said}' if said else ''}"
            lines.setdefault((made, ", ".join(kept), spelled), []).append(kind)
        parts.append(
            _table(
                f"## {name}",
                ("Spark", "made", "kept in", "spelled otherwise"),
                [(", ".join(kinds), *cells) for cells, kinds in lines.items()],
            )
        )
    rows: dict[tuple[str, ...], list[str]] = {}
    for kind in VALUES:
        cells = tuple(
            SPELLINGS[form][kind] if found[form][kind, form] == "spelled" else found[form][kind, form]
            for form in FORMATS
        )
        rows.setdefault(cells, []).append(f"{kind} (read as {SPARK[kind]})" if kind in SPARK else kind)
    parts.append(
        _table(
            "## Files",
            ("Spark", "CSV", "JSON", "Parquet"),
            [(", ".join(kinds), *cells) for cells, kinds in rows.items()],
        )
    )
    return "\n".join(parts)


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        [title, "", *(f"| {' | '.join(line)} |".replace("|  |", "| |").replace("|  |", "| |") for line in lines), ""]
    )


def measured_all(
    spark: SparkSession, postgresql: PostgresqlServer, mariadb: MariadbServer, folder: Path
) -> tuple[list[str], str]:
    """Measure everything; return the faults and the text of the page."""
    files = measured_files(spark, folder)
    with databases(postgresql, mariadb, folder) as targets:
        found: dict[str, Mapping[tuple[str, str], Verdict]] = {
            name: measured(target) for name, target in targets.items()
        }
        found |= {form: {key: verdict for key, verdict in files.items() if key[1] == form} for form in FORMATS}
        wrong = faults(found)
        return wrong, "" if wrong else page(found, targets)


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.kept_types", description="Measure what is kept.")
    parser.add_argument("--write", action="store_true", required=True, help=f"write {PAGE.name} again")
    parser.parse_args()
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only here

    os.environ[PASSWORD_VARIABLE] = PASSWORD
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    with ExitStack() as stack:
        stack.callback(spark.stop)
        servers = stack.enter_context(servers_folder())
        postgresql = stack.enter_context(PostgresqlServer(servers / "postgresql"))
        mariadb = stack.enter_context(MariadbServer(servers / "mariadb"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        wrong, text = measured_all(spark, postgresql, mariadb, folder)
    if wrong:
        sys.exit("\n".join(wrong))
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
