"""PostgreSQL for `SqlSink`, through psycopg 3: statements, types, errors, upserts by way of COPY."""
