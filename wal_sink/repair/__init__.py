"""Changes of a sink that a person orders: catch up, and dead letters that a person deletes.

Nothing here runs unasked, and no query and no committer needs this room.
"""
