"""Code that several backends share, and nothing that knows a target.

`sinks` is the base of the sinks, `options` reads the options in URLs and secrets from the environment, `pacing` limits
rates and pauses, `columns` unwraps Arrow columns, and `durability` warns of servers that may lose acknowledged rows.
"""
