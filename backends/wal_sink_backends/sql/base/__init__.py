"""The base of every dialect of `SqlSink`; no module here imports a dialect.

`dialect` is the interface, and `server` implements it for database servers, whose URLs it reads. `table` checks and
makes the target table, `values` encodes columns and finds rows that a database does not keep, and `types` has the types
of servers.
"""
