"""Code that several backends share, and nothing that knows a target.

`sinks` is the base of the sinks, and warns of servers that may lose acknowledged rows. `options` reads the options in
URLs and secrets from the environment, `pacing` limits rates and pauses, and `columns` unwraps Arrow columns.
`segment_files` and `statistics` are for lakes, whose tables take segments as files.
"""
