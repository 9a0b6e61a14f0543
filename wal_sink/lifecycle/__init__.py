"""One process on one WAL: what it opens, the threads that run its committers, and how they end."""
