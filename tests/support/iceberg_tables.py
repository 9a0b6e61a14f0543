"""Iceberg tables of a catalogue on SQLite, and what the core does with an `IcebergSink`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

from tests.house.sinks import SinkContext
from tests.support.delta_tables import ROWS, at, batch, context, deliver, digest, encoded_segment, segment
from wal_sink_backends.iceberg import IcebergSink

__all__ = ["ROWS", "at", "batch", "context", "deliver", "digest", "encoded_segment", "segment"]
NAME = "lake.orders"
KEY = "wal-sink.wal.default"


def catalog_in(folder: Path, **more: str) -> dict[str, str]:
    """Return the properties of a catalogue whose files are in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse", **more}


def loaded(properties: Mapping[str, str]) -> Catalog:
    given = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO", **properties}
    return load_catalog(given.pop("name", "default"), **given)


def made(catalog: Mapping[str, str], schema: Any = ROWS.schema, **options: Any) -> Table:
    found = loaded(catalog)
    found.create_namespace_if_not_exists("lake")
    return found.create_table(NAME, schema, **options)


def table_of(properties: Mapping[str, str]) -> Table | None:
    try:
        return loaded(properties).load_table(NAME)
    except (NoSuchNamespaceError, NoSuchTableError):
        return None


def there(properties: Mapping[str, str]) -> Table:
    found = table_of(properties)
    assert found is not None
    return found


def rows_in(properties: Mapping[str, str]) -> list[dict[str, Any]]:
    table = table_of(properties)
    found: list[dict[str, Any]] = [] if table is None else table.scan().to_arrow().to_pylist()
    return found


def ids_in(properties: Mapping[str, str]) -> list[int]:
    return sorted(row["id"] for row in rows_in(properties))


def named_files(table: Table) -> set[str]:
    """Return the names of all files that some snapshot of a local table names, metadata excluded."""
    lists = [Path(urlsplit(snapshot.manifest_list).path).name for snapshot in table.metadata.snapshots]
    manifests = [one for snapshot in table.metadata.snapshots for one in snapshot.manifests(table.io)]
    data = [entry.data_file.file_path for one in manifests for entry in one.fetch_manifest_entry(table.io)]
    return {*lists, *(Path(urlsplit(path).path).name for path in [*data, *(one.manifest_path for one in manifests)])}


def files_of(table: Table) -> set[str]:
    """Return the names of all files in the folder of a local table, metadata excluded."""
    folder = Path(urlsplit(table.location()).path)
    return {path.name for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".metadata.json")}


def arrow_rows(table: Table) -> list[dict[str, Any]]:
    """Return the rows of the files of the newest snapshot of a local table, read without pyiceberg."""
    paths = [urlsplit(task.file.file_path).path for task in table.scan().plan_files()]
    return [row for path in paths for row in pa.Table.to_pylist(pq.read_table(path))]


@contextmanager
def opened(
    properties: Mapping[str, str], given: SinkContext | None = None, *, table: str = NAME, **options: Any
) -> Iterator[IcebergSink]:
    sink = IcebergSink(table, catalog=properties, **options)
    sink.open(given or context())
    try:
        yield sink
    finally:
        sink.close()
