"""Batches that no query ran: Spark wrote them into the checkpoint for an offline operation, so none was staged.

The offline repartition of state (Spark 4.2) writes one. It reads nothing and calls no `foreachBatch`, and the query
continues with the next number. An empty manifest stands for the batch. So releases and markers need no exception.
"""

from __future__ import annotations

from wal_sink.checkpoint.reader import Checkpoint
from wal_sink.wal import paths
from wal_sink.wal.log import Log
from wal_sink.wal.records import Manifest

_LOWEST = 0
"""Term and attempt of such a manifest. If Spark runs the batch after all, the stager's manifest has a higher term."""


def pass_over(log: Log, checkpoint: Checkpoint, batch_id: int) -> Manifest | None:
    """The empty manifest of a batch that was not staged; None unless the checkpoint proves that no query ran it.

    The first stager or committer that meets the batch creates the manifest, and every other one finds it. Call this
    only for a completed batch without a manifest. Four reads and a create.
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
        offsets=offsets.text,
        columns=(),
        spark_schema="",
        chunk_rows=1,
        segments=(),
        passed_over=True,
        **log.stamp(),
    )
    return log.create_or_find(paths.manifest(batch_id, _LOWEST, _LOWEST), manifest)[0]
