"""A released batch to one sink: which segments are sent, chunk by chunk, with attempts, budgets and recorded progress.

The same code runs in the driver and on executors.
"""
