"""MariaDB and MySQL for `SqlSink`, through PyMySQL: statements, errors, and the order of locks."""
