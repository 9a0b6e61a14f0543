"""The contents of wheel and sdist: the two packages and what is needed to build and to read them, and nothing else."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.packaging.archives import Archives, all_requirements, build_here, extras_of, faults, sdist_files, wheel_files
from tests.packaging.targets import TARGETS, WITHOUT_EXTRA
from tests.support.documents import tracked_files
from tests.support.processes import CHECKOUT

TRACKED = [path.relative_to(CHECKOUT).as_posix() for path in tracked_files()]  # from git's index, in milliseconds


needs_archives = pytest.mark.processes
"""The build of the archives starts a process."""


@needs_archives
def test_the_archives_hold_what_git_knows_and_nothing_else(archives: Archives) -> None:
    assert faults(archives, TRACKED) == []
    in_wheel = {name.partition("/")[0] for name in wheel_files(archives.wheel)}
    in_sdist = {name.partition("/")[0] for name in sdist_files(archives.sdist)}
    assert {name.partition("-")[0] for name in in_wheel} == {"wal_sink", "wal_sink_backends", "pyspark_wal_sink"}
    assert len(in_wheel) == 4  # three packages and what describes them
    assert in_sdist == {
        *(".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"),
        *("backends", "docs", "wal_sink"),
    }


@needs_archives
def test_the_sdist_builds_the_same_wheel(archives: Archives, tmp_path: Path) -> None:
    with tarfile.open(archives.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    source = tmp_path / archives.sdist.name.removesuffix(".tar.gz")
    build_here(source, tmp_path / "dist", "wheel")
    assert wheel_files(next((tmp_path / "dist").iterdir())) == wheel_files(archives.wheel)


@needs_archives
def test_a_stray_file_is_found_in_the_wheel_and_in_the_sdist(archives: Archives, tmp_path: Path) -> None:
    planted = Archives(tmp_path / archives.wheel.name, archives.sdist)
    planted.wheel.write_bytes(archives.wheel.read_bytes())
    with zipfile.ZipFile(planted.wheel, "a") as wheel:
        wheel.writestr("tests/test_x.py", "")
    assert faults(planted, TRACKED) == ["the wheel holds tests/test_x.py, which git does not know there"]
    planted = Archives(archives.wheel, tmp_path / archives.sdist.name)
    with tarfile.open(archives.sdist) as old, tarfile.open(planted.sdist, "w:gz") as new:
        for member in old.getmembers():
            new.addfile(member, old.extractfile(member))
        new.addfile(tarfile.TarInfo(f"{planted.sdist.name.removesuffix('.tar.gz')}/.cache/x"), io.BytesIO())
        new.addfile(tarfile.TarInfo("outside"), io.BytesIO())
    assert faults(planted, TRACKED) == [
        "the sdist holds .cache/x, which git does not know there",
        "the sdist holds outside, which git does not know there",
    ]


@needs_archives
def test_a_missing_file_and_a_package_without_types_are_found(archives: Archives, tmp_path: Path) -> None:
    known = [*TRACKED, "wal_sink/new.py", "benchmarks/new.py", "docs/new.md"]
    assert faults(archives, known) == [
        "the wheel lacks wal_sink/new.py",
        "the sdist lacks docs/new.md",
        "the sdist lacks wal_sink/new.py",
    ]
    typed = "wal_sink_backends/py.typed"
    planted = Archives(tmp_path / archives.wheel.name, archives.sdist)
    with zipfile.ZipFile(planted.wheel, "w") as wheel:
        for name, content in wheel_files(archives.wheel).items():
            if name != typed:
                wheel.writestr(name, content)
    assert faults(planted, TRACKED) == [
        f"the wheel lacks {typed}",
        f"the wheel lacks {typed}: type checkers ignore this package",
    ]


@needs_archives
def test_every_extra_has_a_target_and_wheels_where_make_package_delivers(archives: Archives) -> None:
    extras = [extra for extra in extras_of(archives.wheel) if extra != "spark"]
    assert extras == sorted(TARGETS)
    assert extras == sorted(WITHOUT_EXTRA)
    names = {Requirement(text).name for text in all_requirements(archives.wheel)}
    assert {"pyspark", "hatchling", "s3fs", "psycopg", "confluent-kafka"} <= names
    assert "psycopg[binary]" in {text.partition("<")[0] for text in all_requirements(archives.wheel)}
