"""What every dialect of `SqlSink` stands on: the dialect interface, the table, values, refused and dropped rows."""
