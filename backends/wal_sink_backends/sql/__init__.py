"""`SqlSink`: rows and position in one transaction of PostgreSQL, MariaDB, MySQL or SQLite.

`sink` is the same for every database, and chooses a dialect. `base` is the interface of a dialect and code that
dialects share; `mariadb`, `postgresql` and `sqlite` are the dialects, and `urls` makes sinks. The ledger table and the
types of created tables must stay as they are: other versions read them.
"""

from wal_sink_backends.sql.sink import SqlSink

__all__ = ["SqlSink"]
