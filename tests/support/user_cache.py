"""The folder for everything that tests fetch once for all checkouts of this user: jars, Sparks, programs."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """Return `wal-sink/` in the user's cache: in `XDG_CACHE_HOME`, or else in `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "wal-sink"
