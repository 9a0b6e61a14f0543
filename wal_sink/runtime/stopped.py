"""The errors that end a thread of a run which is ending. They never leave the package."""

from __future__ import annotations


class StoppedError(Exception):
    """The run is ending; what is not delivered stays in the WAL."""


class JobStoppedError(StoppedError):
    """A Spark job of the stream was cancelled: by a stop of the query, or else the query fails with this."""
