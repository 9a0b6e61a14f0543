"""Rows that a target refused, or whose delivery is unknown: files beside the WAL, under the original keys.

`wal_sink.replay` lists them and sends them again.
"""
