"""Reading a WAL at a start: its owner, its location, lost objects, batches, and the sinks that it serves.

An object was lost if it is absent although a younger one exists. `inventory` says what follows.
"""
