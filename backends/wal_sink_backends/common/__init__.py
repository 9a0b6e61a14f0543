"""Code that several backends share, and nothing that knows a target.

`url_options` reads the options in URLs, `environment` reads secrets, `pacing` limits rates and pauses, `columns` and
`texts` unwrap Arrow columns, and `durability` warns of servers that may lose acknowledged rows.
"""
