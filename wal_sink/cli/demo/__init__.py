"""`wal-sink demo`: kills a real query again and again, and proves from the targets that nothing was lost or doubled."""
