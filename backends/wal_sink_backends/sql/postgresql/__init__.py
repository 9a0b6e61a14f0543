"""PostgreSQL for `SqlSink`, by psycopg 3."""
