"""Contests with the log on an S3 server that answers at once, and on one whose answers take 40 ms more."""
