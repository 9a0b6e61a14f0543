"""Ready sinks, one file each."""
