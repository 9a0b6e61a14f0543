"""Inside `foreachBatch`: what happens to a batch id that Spark hands over, and the manifest of its segments."""
