"""The report of a WAL: one self-contained HTML page with its recent past, from the records that are there anyway."""
