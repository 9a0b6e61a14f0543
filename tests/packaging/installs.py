"""The archives in dist/, installed into empty environments: alone, with each extra, and with all of them.

Run by `make package`. In each environment a pipeline with a real Spark delivers every row once, to SQLite and into the
extra's target on 127.0.0.1; then the command `wal-sink` reads the WAL.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from packaging.requirements import Requirement

from tests.house.protocol import Run
from tests.house.stores import StoreSpec, open_store
from tests.packaging.archives import Archives, all_requirements, extras_of, metadata_of
from tests.packaging.environments import Environment, empty_environment, wheels_for
from tests.packaging.pipeline import FILES, ROWS_PER_FILE
from tests.packaging.targets import TARGETS, WITHOUT_EXTRA, Target
from tests.support.processes import CHECKOUT
from tests.support.programs.quick_java import QUICK
from wal_sink import Settings
from wal_sink.testing import FakeQuery

ARCHIVES = Archives.in_folder(CHECKOUT / "dist")
EXTRAS = [extra for extra in extras_of(ARCHIVES.wheel) if extra != "spark"]
"""The extras of targets and stores."""
WHEELS = wheels_for(all_requirements(ARCHIVES.wheel))
ROWS = list(range(FILES * ROWS_PER_FILE))
PIPELINE_S = 900.0
"""The longest time of a pipeline, which takes 20 s on two idle cores."""
pytestmark = pytest.mark.timeout(1800)


def test_the_wheel_without_spark(tmp_path: Path) -> None:
    """It reads a WAL and drains it, and names what `run` lacks."""
    wal, checkpoint = _staged(tmp_path)
    with empty_environment("plain", WHEELS) as environment:
        environment.install(str(ARCHIVES.wheel))
        assert _installed(environment, tmp_path) & _brought_by_extras() == set()
        drain = ("drain", wal, "--to", f"sqlite:///{tmp_path}/rows.db?table=rows", "--start-from", "earliest")
        for args in (("status", wal), drain):
            with environment.command("wal-sink", *args, log=tmp_path / "log", env={}) as child:
                child.succeed()
        run = f"from wal_sink import WalSink\nWalSink(print, wal={wal!r}, checkpoint={checkpoint!r}).run(None)"
        with environment.command("python", "-c", run, log=tmp_path / "log", env={}) as child:
            assert child.wait() != 0
        assert "ConfigError: this Python (" in child.output
        assert "Elsewhere install wal-sink with its extra spark, or: pip install pyspark" in child.output
        for extra in EXTRAS:
            _names_the_extra(environment, wal, tmp_path, extra)
    with closing(sqlite3.connect(tmp_path / "rows.db")) as database:
        assert database.execute("SELECT id FROM rows ORDER BY id").fetchall() == [(0,), (1,), (2,)]


def test_the_wheel_with_spark_alone(tmp_path: Path) -> None:
    with empty_environment("spark", WHEELS) as environment:
        environment.install(f"wal-sink[spark] @ {ARCHIVES.wheel.as_uri()}")
        files = Target(f"files://{tmp_path / 'lake'}?format=csv", lambda: _ids_in_csv(tmp_path / "lake"))
        _deliver(environment, tmp_path, {"files": files})


def test_the_sdist(tmp_path: Path) -> None:
    with empty_environment("sdist", WHEELS) as environment:
        environment.install(f"wal-sink[spark] @ {ARCHIVES.sdist.as_uri()}")
        _deliver(environment, tmp_path, {})


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_wheel_with(extra: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with empty_environment(extra, WHEELS) as environment:
        environment.install(f"wal-sink[spark,{extra}] @ {ARCHIVES.wheel.as_uri()}")
        _deliver(environment, tmp_path, {extra: TARGETS[extra](request, tmp_path)})


def test_the_wheel_with_all_extras(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with empty_environment("all", WHEELS) as environment:
        environment.install(f"wal-sink[{','.join(['spark', *EXTRAS])}] @ {ARCHIVES.wheel.as_uri()}")
        assert _brought_by_extras() - _installed(environment, tmp_path) == set()
        _deliver(environment, tmp_path, {extra: TARGETS[extra](request, tmp_path) for extra in EXTRAS})


def _staged(folder: Path) -> tuple[str, str]:
    """A WAL of three batches of a row each, which no sink has, and its checkpoint."""
    wal, checkpoint = folder / "wal", folder / "checkpoint"
    files = open_store(StoreSpec(str(checkpoint)))
    run = Run(open_store(StoreSpec(str(wal))), files, Settings())
    run.open()
    run.become_stager()
    assert list(FakeQuery(files, lambda number, *_: [pa.table({"id": [number]})]).batches(run, 3)) == [0, 1, 2]
    return str(wal), str(checkpoint)


def _deliver(environment: Environment, folder: Path, targets: Mapping[str, Target]) -> None:
    """Run the pipeline. Each target, and the SQLite file, must hold every row once."""
    program = folder / "pipeline.py"
    program.write_text((CHECKOUT / "tests" / "packaging" / "pipeline.py").read_text())
    variables: dict[str, str] = {"JDK_JAVA_OPTIONS": QUICK, "SPARK_LOCAL_IP": "127.0.0.1"}
    wal, options = str(folder / "wal"), dict[str, Any]()
    for target in targets.values():
        variables |= target.environment
        wal, options = target.wal or wal, dict(target.storage_options) or options
    given: dict[str, Any] = {"wal": wal, "storage_options": options}
    given["targets"] = {name: one.url for name, one in targets.items()}
    given["is_watched"] = any(target.is_watched for target in targets.values())
    log = folder / "pipeline.log"
    with environment.command("python", program, json.dumps(given), log=log, env=variables, limit_s=PIPELINE_S) as child:
        told = json.loads(child.succeed().splitlines()[-1])
    _check_origin(told, environment)
    with closing(sqlite3.connect(folder / "rows.db")) as database:
        assert [row for (row,) in database.execute("SELECT id FROM rows ORDER BY id")] == ROWS
    assert {name: target.ids() for name, target in targets.items()} == dict.fromkeys(targets, ROWS)

    variables["WAL_SINK_STORAGE_OPTIONS"] = json.dumps(options)
    with environment.command("wal-sink", "status", wal, log=folder / "status.log", env=variables) as child:
        status = child.succeed()
    assert all(name in status for name in ("database", *targets)), status


def _check_origin(told: dict[str, Any], environment: Environment) -> None:
    """Everything must have come from the environment, of the version that was built, and nothing from the checkout."""
    inside = environment.folder.resolve()
    assert Path(told["prefix"]).resolve() == inside
    assert [path for path in told["imported"] if not Path(path).resolve().is_relative_to(inside)] == []
    elsewhere = [Path(path).resolve() for path in told["path"] if not Path(path).resolve().is_relative_to(inside)]
    assert [path for path in elsewhere if path.is_relative_to(CHECKOUT)] == []
    assert told["version"] == metadata_of(ARCHIVES.wheel)["Version"]


def _names_the_extra(environment: Environment, wal: str, folder: Path, extra: str) -> None:
    """A target whose extra is not installed must be refused with the command that installs it."""
    url = WITHOUT_EXTRA[extra]
    to, wal = ("sqlite:///rows.db?table=orders", url) if extra in {"azure", "gcs", "hdfs"} else (url, wal)
    metrics = ("--metrics", "127.0.0.1:0") if extra == "metrics" else ()
    options = ("--to", to, "--name", f"without-{extra}", "--start-from", "earliest", *metrics)
    log = folder / f"without-{extra}.log"
    with environment.command("wal-sink", "drain", wal, *options, log=log, env={}) as child:
        code = child.wait()
    assert code != 0
    assert f"wal-sink with its extra {extra}, or: pip install" in re.sub(r"\s+", " ", child.output)


def _brought_by_extras() -> set[str]:
    """The distributions that only extras ask for, as `_installed` names them."""
    requirements = [Requirement(text) for text in metadata_of(ARCHIVES.wheel).get_all("Requires-Dist", [])]
    return {_normal(requirement.name) for requirement in requirements if requirement.marker is not None}


def _installed(environment: Environment, folder: Path) -> set[str]:
    program = "from importlib.metadata import distributions\nfor one in distributions(): print(one.metadata['Name'])"
    with environment.command("python", "-c", program, log=folder / "installed.log", env={}) as child:
        return {_normal(name) for name in child.succeed().split()}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _ids_in_csv(folder: Path) -> list[int]:
    lines = [line for path in folder.rglob("*.csv") for line in path.read_text().splitlines()[1:]]
    return sorted(int(line.partition(",")[0]) for line in lines)
