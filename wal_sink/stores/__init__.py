"""The durable primitives, one file per kind of store; also the encoding of rows that segments and files share."""
