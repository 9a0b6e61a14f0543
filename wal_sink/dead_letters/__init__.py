"""Rows that a target refused, or whose outcome is unknown: kept as files beside the WAL, under their original keys.

Listing and sending them again is in `wal_sink.replay`.
"""
