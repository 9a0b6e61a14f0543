"""`SqlSink`: rows and position in one transaction of PostgreSQL, MariaDB, MySQL or SQLite."""

from wal_sink_backends.sql.sink import SqlSink

__all__ = ["SqlSink"]
