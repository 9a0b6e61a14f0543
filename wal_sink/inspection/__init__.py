"""Looking at a WAL: its sinks, their backlog, its batches and rows. Reads only, claims no term, needs no Spark."""
