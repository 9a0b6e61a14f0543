"""Two-phase sinks: rows are prepared in the target while they are staged, and committed after the release.

A transaction that no process will commit is aborted.
"""
