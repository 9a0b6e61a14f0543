"""Where the tests stand that have to reach every branch of the core, and that `make mutation` runs on its mutants."""

FOLDERS = (
    "unit",
    "spark",
    "simulation",
    "integration/backends",
    "integration/cli",
    "integration/dynamodb",
    "integration/http",
    "integration/redis",
    "integration/runtime",
    "integration/sinks",
    "integration/stores",
)
"""Below tests/. The rooms of tests/integration show units that need a process, a server or a port.

No other test is traced, for speed. Imports nothing: benchmarks/mutation/run.py reads this file by its path.
"""
