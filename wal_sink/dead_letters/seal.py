"""The checksum of a dead letter's whole file, which stands in the file's own metadata.

It is computed while its place holds zeros. A Parquet reader checks pages and no footer, and a changed bit of the footer
may give a number another scale.
"""

from __future__ import annotations

import re
import zlib

KEY = b"wal_sink.file_crc32"
BLANK = b"0" * 10
"""The value while the checksum is computed."""
_PLACE = re.compile(re.escape(KEY) + rb".{0,8}?(\d{10})", re.DOTALL)


def sealed(data: bytes) -> bytes:
    """A file whose metadata end with `KEY` and `BLANK`, with its checksum."""
    at = _place(data)
    if at is None:
        raise AssertionError("the file has no place for its checksum")
    return b"".join((data[:at], b"%010d" % _checksum(data, at), data[at + len(BLANK) :]))


def fits(data: bytes) -> bool:
    """Whether a file that `sealed` made has the bytes that it had then."""
    at = _place(data)
    return at is not None and int(data[at : at + len(BLANK)]) == _checksum(data, at)


def _place(data: bytes) -> int | None:
    """The offset of the checksum: behind the last `KEY`, since rows and names of columns stand before the metadata."""
    found = _PLACE.match(data, max(0, data.rfind(KEY)))
    return found.start(1) if found else None


def _checksum(data: bytes, at: int) -> int:
    view = memoryview(data)
    return zlib.crc32(view[at + len(BLANK) :], zlib.crc32(BLANK, zlib.crc32(view[:at])))
