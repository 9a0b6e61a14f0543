"""Examining where a WAL is to run: machine, credentials, store, bucket, checkpoint and target, each finding with its
next step; and a redacted archive of the findings for a bug report. It changes nothing but its own probes, which it
deletes.
"""
