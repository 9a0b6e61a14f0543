"""Delivery of a released batch to one sink: segments sent chunk by chunk, with attempts, budgets, recorded progress.

The same code runs in the driver and on executors.
"""
