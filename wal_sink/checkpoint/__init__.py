"""Spark's checkpoint, read only: its file formats, the fingerprint of a batch, and the gate.

The gate tells whether Spark has completed a batch. Nothing is delivered before the gate opens.
"""
