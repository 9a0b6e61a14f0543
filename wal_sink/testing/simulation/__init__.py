"""Processes of a query without Spark: a checkpoint, stores that fail, sinks that are watched, simulated time."""
