"""Checks of a whole WAL, read only: every checksum and reference, and comparisons with the checkpoint and a target.

A WAL may be written while it is checked. So every apparent fault is looked at again before it becomes a finding.
"""
