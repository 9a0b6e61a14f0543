"""Batches that no query ran: Spark wrote them into the checkpoint for an offline operation, so nobody staged them.

The offline repartition of state (Spark 4.2) writes one. It reads nothing and calls no `foreachBatch`, and the query
goes on with the next number. An empty manifest stands for it, so that release, markers and order stay as they are.
"""

from __future__ import annotations

from wal_sink.checkpoint.reader import Checkpoint
from wal_sink.wal import paths
from wal_sink.wal.log import Log
from wal_sink.wal.records import Manifest

_LOWEST = 0
"""Term and attempt of such a manifest: what a stager stages of the batch, if Spark runs it after all, counts more."""


def pass_over(log: Log, checkpoint: Checkpoint, batch_id: int) -> Manifest | None:
    """The empty manifest that stands for a batch nobody staged; None unless the checkpoint proves that no query ran it.

    The first stager or committer that meets the batch creates the manifest, and every other one finds it. Call this
    only for a completed batch without a manifest. It costs four reads and a create.
    """
    offsets = checkpoint.repartition(batch_id)
    if offsets is None:
        return None
    manifest = Manifest(
        batch_id=batch_id,
        term=_LOWEST,
        attempt=_LOWEST,
        run_id=log.run_id,
        fingerprint=offsets.fingerprint,
        rule=offsets.rule,
        offsets=offsets.text,
        columns=(),
        spark_schema="",
        chunk_rows=1,
        segments=(),
        passed_over=True,
        **log.stamp(),
    )
    return log.create_or_find(paths.manifest(batch_id, _LOWEST, _LOWEST), manifest)[0]
