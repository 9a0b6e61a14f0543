"""Looking at a whole WAL, and changing it by a person's order: status, batches, report, verify, doctor, skip, settle.

`look` reads a WAL, and everything else stands on it. Looking claims no term, writes nothing and needs no Spark.
A WAL may be written meanwhile, so every apparent fault is looked at again before it becomes a finding.

Nothing here runs unasked, and no query and no committer needs this room.
"""
