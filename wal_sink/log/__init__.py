"""Everything that is written on the store: paths, records, segments, terms, and the log that creates and reads them.

Only this room knows the format of a WAL (docs/FORMAT.md). A change here is a change of the format.
"""
