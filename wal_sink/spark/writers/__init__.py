"""Existing PySpark writers as sinks: `ForeachWriter`, data source writers, and the rows they expect."""
