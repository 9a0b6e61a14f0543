"""How the project speaks: loggers, and texts of objects that others made. No text made here raises or ends a thread."""
