"""The base of every dialect of `SqlSink`; no module here imports a dialect.

`dialect` is the interface, `server` implements it for database servers, and `address` reads their URLs. `table` checks
and makes the target table, `values` encodes columns, `refused` and `dropped` find rows that a database does not keep.
"""
