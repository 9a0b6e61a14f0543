"""A Delta table as a target: `DeltaSink` shows each batch in one commit, with the position in it.

`table` reaches table, files and log, and only it knows deltalake; `history` walks the log; `schema` compares a table
with the columns of a batch. Names of files and the ids of transactions lie in tables: they must stay as they are.
"""

from wal_sink_backends.delta.sink import DeltaSink

__all__ = ["DeltaSink"]
