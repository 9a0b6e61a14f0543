"""`format("wal_sink")`: staging a query without `foreachBatch`, and reading the released batches of a WAL.

Spark calls this code in its own Python workers, on the driver's machine and on executors. None of them has a JVM.
"""
