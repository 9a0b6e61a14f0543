"""Delivery on Spark: the job that sends segments from executors, and whole batches as DataFrames on the driver."""
