"""The files of the repository."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.support.processes import CHECKOUT

NOT_IN_GIT = {".git", ".venv", ".cache", "dist", "demo-out", "__pycache__", "spark-warehouse", "metastore_db"}


def tracked() -> list[Path]:
    """List the files git knows; without git or its folder (an unpacked archive), the files that lie here."""
    if shutil.which("git") and (CHECKOUT / ".git").exists():
        git = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
        listed = subprocess.run(git, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
        return [CHECKOUT / name for name in listed.split("\0") if name and (CHECKOUT / name).is_file()]
    everything = (path for path in CHECKOUT.rglob("*") if path.is_file())
    return [path for path in everything if not NOT_IN_GIT & set(path.relative_to(CHECKOUT).parts)]
