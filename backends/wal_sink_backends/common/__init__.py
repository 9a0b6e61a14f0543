"""Code that several backends share, and nothing that knows a target.

`options` reads the options in URLs and secrets from the environment, `pacing` limits rates and pauses, `columns`
unwraps Arrow columns, and `durability` warns of servers that may lose acknowledged rows.
"""
