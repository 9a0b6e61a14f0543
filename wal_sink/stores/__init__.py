"""The durable primitives, one file per kind of store."""
