"""Copying a whole WAL to another place, verified, so that a copy is complete or is taken for no WAL.

Needs no Spark. Nothing here runs in a query or a drain.
"""
