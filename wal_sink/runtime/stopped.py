"""Errors that end a thread when its run is ending. They never leave the package."""

from __future__ import annotations


class StoppedError(Exception):
    """The run is ending. Undelivered batches stay in the WAL."""


class JobStoppedError(StoppedError):
    """A Spark job of the stream was cancelled: by a stop of the query; otherwise the query fails with this error."""
