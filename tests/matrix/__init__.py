"""The program of `make matrix`: the same tests on every Spark, Python and oldest package that wal-sink allows.

`cells` lists what is tried, `environment` makes the virtual environment of a cell, `results` runs a cell and keeps what
its tests told, `report` writes benchmarks/MATRIX.md. Nothing here is collected by `make test-all`.
"""
