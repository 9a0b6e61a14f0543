"""`python -m wal_sink.cli` is the same as the console script `wal-sink`."""

from wal_sink.cli.main import main

main(prog_name="wal-sink")
