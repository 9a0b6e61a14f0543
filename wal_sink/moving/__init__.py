"""A WAL that changes its place or loses its checkpoint.

Copying it whole, verified, so that a copy is complete or is taken for no WAL (`copy`). Finding out whether a WAL, its
place and a checkpoint belong together, and what a sink would get twice or never if not (`situation`); then recording
the new place, or making a checkpoint with which a drain delivers what is left (`adopt`). Needs no Spark. Nothing here
runs in a query or a drain.
"""
