"""Two-phase sinks: rows are prepared in the target while they are staged, and committed after the release.

What nobody will commit is aborted.
"""
