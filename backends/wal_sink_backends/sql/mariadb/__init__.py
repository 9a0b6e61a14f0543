"""MariaDB and MySQL for `SqlSink`, by PyMySQL."""
