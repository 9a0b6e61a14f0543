"""`wal-sink settle`: a WAL whose checkpoint is lost delivers what it holds.

Which of its batches Spark has certainly completed (`ending`), and the checkpoint with which a drain delivers them
(`settle`). Needs no Spark. Nothing here runs in a query or a drain.
"""
