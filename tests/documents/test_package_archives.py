"""The contents of wheel and sdist: the two packages and what is needed to build and to read them, and nothing else."""

from __future__ import annotations

import tarfile
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
def test_every_extra_has_a_target_and_wheels_where_make_package_delivers(archives: Archives) -> None:
    extras = [extra for extra in extras_of(archives.wheel) if extra != "spark"]
    assert extras == sorted(TARGETS)
    assert extras == sorted(WITHOUT_EXTRA)
    names = {Requirement(text).name for text in all_requirements(archives.wheel)}
    assert {"pyspark", "hatchling", "s3fs", "psycopg", "confluent-kafka"} <= names
    assert "psycopg[binary]" in {text.partition("<")[0] for text in all_requirements(archives.wheel)}
