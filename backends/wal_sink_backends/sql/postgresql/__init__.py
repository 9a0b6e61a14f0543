"""PostgreSQL for `SqlSink`, through psycopg 3: statements, errors, upserts by way of COPY."""
