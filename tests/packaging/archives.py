"""Wheel and sdist: how they are built, and what may be in them."""

from __future__ import annotations

import email.message
import email.parser
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from tests.support.processes import CHECKOUT

MOST_BYTES = 3_000_000
BUILD_S = 400.0
"""The longest time of a build. Without a cache it downloads hatchling."""
ROOT_FILES = {".gitignore", "CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml"}
"""The files beside the folders of an sdist. hatchling adds .gitignore, by which it chooses files."""
FOLDERS = {"backends", "docs", "wal_sink"}
"""The folders of an sdist: what is needed to build, and to read."""
TYPED = {"wal_sink/py.typed", "wal_sink_backends/py.typed", "pyspark_wal_sink/py.typed"}


@dataclass(frozen=True)
class Archives:
    """The two files of a release."""

    wheel: Path
    sdist: Path

    @classmethod
    def in_folder(cls, folder: Path) -> Archives:
        """Return the archives of a folder that holds nothing else. Raise ValueError otherwise."""
        found = sorted(path.name for path in folder.glob("*"))
        wheels, sdists = list(folder.glob("wal_sink-*.whl")), list(folder.glob("wal_sink-*.tar.gz"))
        if (len(found), len(wheels), len(sdists)) != (2, 1, 1):
            raise ValueError(f"{folder}: expected one wheel and one sdist and nothing else, found {found}")
        return cls(wheels[0], sdists[0])


def build(folder: Path) -> Archives:
    """Build as a release is built: the sdist, then the wheel from it, each in an isolated environment."""
    command = [sys.executable, "-m", "build", "--outdir", str(folder)]
    command += ["--dependency-constraints-txt", str(CHECKOUT / "constraints.txt"), str(CHECKOUT)]
    subprocess.run(command, check=True, timeout=BUILD_S)
    return Archives.in_folder(folder)


def build_here(source: Path, folder: Path, *kinds: str) -> None:
    """Build `sdist`, `wheel` or both with this environment's hatchling, each from `source`. Takes a second."""
    targets = [word for kind in kinds for word in ("--target", kind)]
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder), *targets]
    subprocess.run(command, cwd=source, check=True, capture_output=True, text=True, timeout=60)


def wheel_files(wheel: Path) -> dict[str, bytes]:
    """Return the contents of all files of a wheel by path."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def sdist_files(sdist: Path) -> dict[str, bytes]:
    """Return the contents of all files of an sdist by path below its one folder. Links and devices have no content."""
    top = f"{sdist.name.removesuffix('.tar.gz')}/"
    files: dict[str, bytes] = {}
    with tarfile.open(sdist) as archive:
        for member in archive.getmembers():
            if not member.isdir():
                content = archive.extractfile(member) if member.isreg() else None
                files[member.name.removeprefix(top)] = content.read() if content is not None else b""
    return files


def metadata_of(wheel: Path) -> email.message.Message:
    """Return the metadata of a wheel. Its payload is the description."""
    return email.parser.BytesParser().parsebytes(metadata_bytes(wheel))


def metadata_bytes(wheel: Path) -> bytes:
    return wheel_files(wheel)[f"{_release(wheel)}.dist-info/METADATA"]


def extras_of(wheel: Path) -> list[str]:
    return sorted(metadata_of(wheel).get_all("Provides-Extra", []))


def all_requirements(wheel: Path) -> set[str]:
    """Return the requirements of a wheel and of each extra, and those for building it again."""
    listed = map(Requirement, metadata_of(wheel).get_all("Requires-Dist", []))
    building = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["build-system"]["requires"]
    return {str(requirement).partition(";")[0].strip() for requirement in listed} | set(building)


def faults(archives: Archives, tracked: Iterable[str]) -> list[str]:
    """Compare both archives with the files of the repository, by path. Return what is wrong, or nothing."""
    known = set(tracked)
    wheel, sdist = wheel_files(archives.wheel), sdist_files(archives.sdist)
    found = [
        *_differences("the wheel", set(wheel), _wanted_in_wheel(known, _release(archives.wheel))),
        *_differences("the sdist", set(sdist), _wanted_in_sdist(known)),
        *(f"the wheel lacks {name}: type checkers ignore this package" for name in sorted(TYPED - set(wheel))),
    ]
    sizes = {path.name: path.stat().st_size for path in (archives.wheel, archives.sdist)}
    too_large = (f"{name} has {size:,} bytes; expected at most {MOST_BYTES:,}" for name, size in sizes.items())
    return [*found, *(fault for fault, size in zip(too_large, sizes.values(), strict=True) if size > MOST_BYTES)]


def _differences(archive: str, has: set[str], wanted: set[str]) -> Iterable[str]:
    yield from (f"{archive} holds {name}, which git does not know there" for name in sorted(has - wanted))
    yield from (f"{archive} lacks {name}" for name in sorted(wanted - has))


def _wanted_in_wheel(tracked: set[str], release: str) -> set[str]:
    ours = {name for name in tracked if name.startswith("wal_sink/")}
    ours |= {name.removeprefix("backends/") for name in tracked if name.startswith("backends/")}
    information = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    return ours | {f"{release}.dist-info/{name}" for name in information}


def _wanted_in_sdist(tracked: set[str]) -> set[str]:
    return {name for name in tracked if name.partition("/")[0] in FOLDERS} | ROOT_FILES | {"PKG-INFO"}


def _release(wheel: Path) -> str:
    """Return name and version as the wheel's file name has them."""
    return "-".join(wheel.name.split("-")[:2])
