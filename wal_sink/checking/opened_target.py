"""An open session with the target of a sink, for comparisons. It is opened as a delivery opens it, and gets no rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from wal_sink.checking.look import Look, SinkFacts
from wal_sink.sinks.base import Sink, SinkContext
from wal_sink.sinks.held import holding
from wal_sink.sinks.session import SinkSession
from wal_sink.wal import paths
from wal_sink.wal.log import NOTHING
from wal_sink.wal.records import Manifest, Release


@contextmanager
def opened_target(look: Look, facts: SinkFacts, sink: Sink, timeout_s: float) -> Iterator[SinkSession]:
    """A session with an open sink. Its calls raise `SinkFailedError`, and so does opening it."""
    wal, terms = look.known.wal, look.terms_of(paths.committer_role(facts.folder))
    context = SinkContext(
        wal_id=wal.wal_id if wal else "",
        sink=facts.folder,
        term=max(terms.runs, default=0),
        batch_id=max(facts.marked_through, NOTHING + 1),
        columns=(),
        on_executor=False,
    )
    with holding(sink, f"the audit of sink {facts.folder!r} of {look.log.store.root}"):
        session = SinkSession(sink, look.log.runtime.new_timed_call(), context, timeout_s=timeout_s)
        try:
            session.open()
            yield session
        finally:
            session.close()


def released_manifest(look: Look, batch_id: int) -> Manifest | None:
    """The released manifest of a batch, if the WAL holds it. Faults of both records are told with their batch."""
    quiet = Look(look.known)
    release = quiet.find(Release, paths.release(batch_id))
    path = paths.manifest(batch_id, release.term, release.attempt) if release else None
    return quiet.find(Manifest, path) if path else None
