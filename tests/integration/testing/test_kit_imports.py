"""The imports of the kit for tests: it works for users without Spark, without a ready sink and without pytest."""

from __future__ import annotations

import subprocess
import sys

from tests.support.processes import python_environment


def test_the_kit_needs_neither_spark_nor_a_backend_nor_until_the_contract_pytest() -> None:
    program = (
        "import sys, wal_sink.testing as kit; kit.query_into(print); "
        "print(sorted({'pytest', 'pyspark', 'wal_sink_backends'} & set(sys.modules))); "
        "print(kit.SinkContract.__name__, 'pytest' in sys.modules, 'pyspark' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=python_environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:2] == ["[]", "SinkContract True False"]
