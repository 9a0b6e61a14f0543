"""The durable primitives, one file per kind of store, and the encoding of rows that segments and files share."""
