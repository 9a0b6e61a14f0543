"""Staging on Spark: the job that writes the rows of a batch as segments, on executors, each row exactly once."""
