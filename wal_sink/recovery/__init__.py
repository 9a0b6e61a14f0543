"""What a start finds in a WAL, in the order in which it looks.

Whose the WAL is, where it lies, what is missing, which sinks it serves.

An object that is absent although something younger exists was lost: `inventory` says what follows.
"""
