"""An Iceberg table as a target: `IcebergSink` shows each batch in one commit, with the position in it.

`table` reaches catalog and files, and makes the commit; `history` reads the position and walks the snapshots; `schema`
compares a table with the columns of a batch. Names of files, the table's property with the position and the mark of a
snapshot lie in tables: they must stay as they are.
"""

from wal_sink_backends.iceberg.sink import IcebergSink

__all__ = ["IcebergSink"]
