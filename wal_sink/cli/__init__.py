"""The command line `wal-sink`: a thin layer over the public API and `wal_sink.operate`."""
