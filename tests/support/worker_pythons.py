"""Virtual environments for the Python of Spark's workers: with all that wal-sink needs, with or without itself.

The packages are those of this interpreter, copied without their tests. So nothing is downloaded or built.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from tests.support.processes import CHECKOUT

PACKAGES = (CHECKOUT / "wal_sink", CHECKOUT / "backends" / "wal_sink_backends")
_LEFT_OUT = frozenset({"tests", "include", ".."})
"""Folders of distributions that no worker reads. `..` leads to scripts, whose first line names this interpreter."""


def environment_without_us(folder: Path) -> Path:
    """Make an environment with everything that wal-sink needs in a worker, but not wal-sink. Return its interpreter."""
    venv.create(folder, symlinks=True)
    for name in sorted(_needed(["wal-sink", "pandas"]) - {"wal-sink"}):
        _copy(metadata.distribution(name), _site_packages(folder))
    return folder / "bin" / "python"


def add_us(folder: Path) -> None:
    """Add wal-sink to an environment, as an installation does."""
    for package in PACKAGES:
        shutil.copytree(package, _site_packages(folder) / package.name, ignore=shutil.ignore_patterns("__pycache__"))


def zip_of_us(path: Path) -> Path:
    """Write the zip file for `--py-files` by the command of docs/guide/clusters.md."""
    command: list[str | Path] = [sys.executable, "-m", "zipfile", "--create", path, *PACKAGES]
    subprocess.run(command, check=True, timeout=300)
    return path


def packed(folder: Path, path: Path) -> Path:
    """Pack an environment with venv-pack, as Spark's documentation advises. `path` ends with its format.

    That is `.tar.gz`, since Spark cannot unpack a link from a plain `.tar` before its folder exists. Nothing is
    compressed, which would take most of the time.
    """
    command: list[str | Path] = [sys.executable, "-m", "venv_pack", "--quiet", "--compress-level", "0"]
    command += ["--prefix", folder, "--output", path]
    subprocess.run(command, check=True, timeout=300)
    return path


def _needed(names: Iterable[str], known: frozenset[str] = frozenset()) -> frozenset[str]:
    """Return the distributions that these need here, with themselves."""
    for name in names:
        if name not in known:
            known = _needed(_required(name), known | {name})
    return known


def _required(name: str) -> Iterator[str]:
    for line in metadata.requires(name) or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name.lower()


def _copy(distribution: metadata.Distribution, to: Path) -> None:
    for file in distribution.files or ():
        if _LEFT_OUT.isdisjoint(file.parts):
            target = to / file
            target.parent.mkdir(parents=True, exist_ok=True)
            _link(Path(str(file.locate())), target)


def _link(source: Path, target: Path) -> None:
    """Copy a file, by a second name where the file system allows it."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        return  # the list of a distribution names bytecode that may not be there
    except OSError:
        shutil.copy2(source, target)


def _site_packages(folder: Path) -> Path:
    return next((folder / "lib").glob("python3.*")) / "site-packages"
