"""Nothing that lies in a WAL is run: schemas in manifests, on every version of Spark that wal-sink allows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.programs import malicious_manifest
from tests.support.spark_versions import VERSIONS, run_on

pytestmark = pytest.mark.spark

UNPICKLES = "4.0.0"
"""The PySpark whose `StructType.fromJson` loads a pickle; later patches do not."""


@pytest.mark.parametrize("version", [UNPICKLES, *VERSIONS])
@pytest.mark.timeout(1200)
def test_a_schema_in_a_manifest_runs_nothing(version: str, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    run_on(version, Path(malicious_manifest.__file__), place, log=tmp_path / "log")
    report = json.loads((place / "run.json").read_text())

    assert report["version"] == version
    assert report["created"] == []
    seen = report["seen"]
    assert seen.pop("vector") == {"whole batch": "used", "rows": "used"}
    assert seen.pop("own") == {"whole batch": "used", "rows": "used"}
    assert len(seen) == 8
    for answers in seen.values():
        for answer in answers.values():
            assert answer.startswith("ConfigError: batch 7: the manifest's schema has the user-defined type ")
            assert "This program does not have the class of this type" in answer
    assert "'wal_sink_attack.Type'" in seen["a module of this folder"]["rows"]
