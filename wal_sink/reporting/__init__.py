"""Output of the project: loggers, texts of objects that others made, and tables that objects print.

No function of the loggers and texts raises or ends a thread.
"""
