"""Disks that can be made full or read-only, and repaired again."""

from __future__ import annotations

import os
import resource
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

Trouble = Literal["full", "read-only"]
PAGE = 4096
MIB = 4


class Disk(ABC):
    """A folder whose disk can be made full or read-only."""

    kind: str
    """A description for the report."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def can(self, trouble: Trouble, *, for_others: bool = False) -> bool:  # noqa: ARG002
        """Tell whether this trouble can be made here; with `for_others`, whether other processes meet it too."""
        return True

    @abstractmethod
    def begin(self, trouble: Trouble, free_pages: int = 0) -> bool:
        """Make the trouble; leave `free_pages` on a full disk. Return False if an open file prevents it just now."""

    @abstractmethod
    def end(self) -> None:
        """Repair the disk. Harmless if nothing is wrong."""


class Mounted(Disk):
    """A separate tmpfs, which root can mount. It gives the real errors ENOSPC and EROFS."""

    def __init__(self, folder: Path, mib: int) -> None:
        super().__init__(folder)
        self.kind = f"a tmpfs of {mib} MiB, filled up, or mounted read-only"

    def begin(self, trouble: Trouble, free_pages: int = 0) -> bool:
        if trouble == "read-only":
            return _mount("-o", "remount,ro", self.folder)
        with self._ballast.open("wb", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(PAGE))
            except OSError:  # the disk is full
                size = os.fstat(ballast.fileno()).st_size
            os.ftruncate(ballast.fileno(), max(0, size - free_pages * PAGE))
        return True

    def end(self) -> None:
        _mount("-o", "remount,rw", self.folder)
        self._ballast.unlink(missing_ok=True)

    @property
    def _ballast(self) -> Path:
        return self.folder / "ballast"


class Limited(Disk):
    """A substitute for users who may not mount: a limit on the size of files, or folders without write permission."""

    kind = "RLIMIT_FSIZE for full (EFBIG), folders without write permission for read-only (EACCES)"
    _usual = resource.getrlimit(resource.RLIMIT_FSIZE)

    def can(self, trouble: Trouble, *, for_others: bool = False) -> bool:
        return not for_others if trouble == "full" else os.geteuid() != 0

    def begin(self, trouble: Trouble, free_pages: int = 0) -> bool:
        if trouble == "full":
            resource.setrlimit(resource.RLIMIT_FSIZE, (100 * free_pages, self._usual[1]))
        else:
            self._chmod(0o500)
        return True

    def end(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._usual)
        self._chmod(0o700)

    def _chmod(self, mode: int) -> None:
        for folder, _, _ in os.walk(self.folder):
            Path(folder).chmod(mode)


@contextmanager
def disk_of(folder: Path, mib: int = MIB) -> Iterator[Disk]:
    """Yield a small separate disk at `folder` for the block. Its kind depends on the permissions of this user."""
    folder.mkdir(parents=True)
    mounted = os.geteuid() == 0 and _mount("-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", folder)
    disk = Mounted(folder, mib) if mounted else Limited(folder)
    try:
        yield disk
    finally:
        disk.end()
        if mounted:  # lazily, since a dying process may still have a file open
            subprocess.run(["umount", "--lazy", folder], check=True, capture_output=True)  # noqa: S607


def _mount(*args: str | Path) -> bool:
    return subprocess.run(["mount", *args], check=False, capture_output=True).returncode == 0  # noqa: S607
