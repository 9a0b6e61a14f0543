"""Processes of a query without Spark: a checkpoint, failing stores, watched sinks and simulated time."""
