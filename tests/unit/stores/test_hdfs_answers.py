"""Failures of HDFS's clients, and what they mean."""

from __future__ import annotations

from wal_sink.stores.hdfs import NO_NODE, HdfsError


def test_a_lost_data_node_is_a_failure_that_passes_with_its_own_next_step() -> None:
    cases: list[str] = [
        'DataTransferError("All nodes failed for write")',  # of hdfs-native, when the only data node hung up
        "DataTransferError: All DataNodes failed: []",
        "File /a could only be written to 0 of the 1 minReplication nodes.",
    ]
    for text in cases:
        error = HdfsError("RuntimeError", text)
        assert error.kind == NO_NODE
        assert "check that the data nodes run" in error.step
