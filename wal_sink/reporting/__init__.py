"""Output of the project: loggers, and texts of objects that others made. No function here raises or ends a thread."""
