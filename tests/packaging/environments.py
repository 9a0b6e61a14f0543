"""Empty virtual environments, in seconds: pip collects the wheels of all extras once, and uv links their files.

uv alone would not do: PySpark is distributed as source, and where a package index forbids caching, uv builds its 400 MB
again for each environment.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import CHECKOUT, Child

COLLECT_S = 1200.0
"""The longest time of collecting wheels. Without a cache, pip downloads PySpark and builds a wheel of it."""
INSTALL_S = 240.0
PLACE = CHECKOUT / ".cache" / "package"
"""Wheels, uv's cache and the environments. uv links files within one file system only."""
CONSTRAINTS = CHECKOUT / "constraints.txt"
NOT_INHERITED = ("PYTHON", "PYSPARK", "SPARK", "VIRTUAL_ENV", "CONDA", "COVERAGE", "COV_", "PYTEST")
"""Beginnings of the names of variables through which an environment could use anything outside of it."""


def wheels_for(requirements: Iterable[str]) -> Path:
    """Return the folder for the wheels of these requirements and all that they need, for this Python."""
    text = "\n".join([sys.version, CONSTRAINTS.read_text(), *sorted(requirements)])
    return PLACE / "wheels" / hashlib.sha256(text.encode()).hexdigest()[:16]


def collect_wheels(requirements: Iterable[str]) -> None:
    """Let pip download or build the wheels, in the versions of constraints.txt, if they are not there."""
    listed = sorted(requirements)
    folder = wheels_for(listed)
    if folder.is_dir():
        return
    shutil.rmtree(folder.parent, ignore_errors=True)  # those of older requirements, and of an interrupted run
    unfinished = folder.with_name("unfinished")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-input", "--wheel-dir", str(unfinished)]
    pip += ["--constraint", str(CONSTRAINTS), "--build-constraint", str(CONSTRAINTS)]
    subprocess.run([*pip, *listed], check=True, timeout=COLLECT_S)
    unfinished.rename(folder)


class Environment:
    """A virtual environment that holds nothing but what `install` brings."""

    def __init__(self, folder: Path, wheels: Path) -> None:
        self.folder = folder
        self._wheels = wheels
        self._uv("venv", "--quiet", "--no-project", "--python", sys.executable, str(folder))

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def install(self, requirement: str) -> None:
        """Install from the collected wheels. Raise RuntimeError if packages are missing or do not fit together."""
        source = ["--no-index", "--find-links", str(self._wheels), "--constraints", str(CONSTRAINTS)]
        self._uv("pip", "install", "--quiet", "--python", str(self.python), *source, requirement)
        self._uv("pip", "check", "--quiet", "--python", str(self.python))

    def command(self, name: str, *args: str | Path, log: Path, env: Mapping[str, str], limit_s: float = 240) -> Child:
        """Start a program of the environment as from a shell where it is active. The folder of `log` is its own."""
        program = self.folder / "bin" / name
        return Child([program, *args], log=log, env=self._active(env), cwd=log.parent, limit_s=limit_s)

    def _active(self, env: Mapping[str, str]) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}
        path = os.pathsep.join([str(self.folder / "bin"), os.environ.get("PATH", os.defpath)])
        return {**kept, "PATH": path, "PYTHONNOUSERSITE": "1", **env}

    def _uv(self, *args: str) -> None:
        command = [str(Path(sys.executable).with_name("uv")), *args]
        env = {**os.environ, "UV_CACHE_DIR": str(PLACE / "uv"), "UV_PYTHON_DOWNLOADS": "never"}
        folder = self.folder.parent  # not the checkout, whose pyproject.toml uv would read
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"uv {' '.join(args)} ended with {done.returncode}\n{done.stdout}{done.stderr}")


@contextmanager
def empty_environment(name: str, wheels: Path) -> Iterator[Environment]:
    """Make an environment that is installed from a folder of wheels, and delete it in the end."""
    folder = PLACE / f"{name}-{os.getpid()}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield Environment(folder, wheels)
    finally:
        shutil.rmtree(folder)
