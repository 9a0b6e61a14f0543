"""Examining where a WAL is to run: store, bucket, checkpoint and target, each finding with its next step. It changes
nothing but its own probes, which it deletes. `wal_sink/spark/examination.py` examines Java and the workers.
"""
