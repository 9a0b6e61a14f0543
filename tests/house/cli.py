"""The command line."""

from __future__ import annotations

from wal_sink.cli import working
from wal_sink.cli.main import main

__all__ = [
    "main",
    "working",
]
