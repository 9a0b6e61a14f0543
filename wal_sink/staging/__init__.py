"""Staging inside `foreachBatch`: deciding about a batch id of Spark, and the manifest of the batch's segments."""
