"""The committer of one sink, in batch order: wait for the gate, release, deliver, mark, collect."""
