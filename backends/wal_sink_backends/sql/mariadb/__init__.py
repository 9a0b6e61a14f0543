"""MariaDB and MySQL for `SqlSink`, through PyMySQL: statements, types, errors, and the order of locks."""
