"""The end of a `WalSink` by an error: that error is raised again by every later `close`."""

from __future__ import annotations

from wal_sink.errors import UndeliveredError


def raise_again(failure: BaseException | None, owner: str) -> None:
    """Raise the error that ended `owner`, so that a second `close` does not look like a success.

    Nothing happens for None. Ctrl-C and other exits become an `UndeliveredError`: raised again, they would end the
    program a second time.
    """
    if failure is None:
        return
    if isinstance(failure, Exception):
        raise failure
    raise UndeliveredError(
        f"{owner} was ended by {type(failure).__name__} before all complete batches were delivered. The other batches "
        "stay in the WAL. Start the query or command again"
    ) from failure
