"""Changes of a WAL that a person orders: skip a batch, send batches again, delete debris. Each is written into the WAL.

Nothing here runs unasked, and no query and no committer needs this room.
"""
