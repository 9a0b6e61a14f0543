"""A segment that waits on local disk has every byte, or it is never sent."""

from __future__ import annotations

import io
from typing import Any

import pytest

from wal_sink.errors import StoreError
from wal_sink.stores import base


class NearlyFull(io.BytesIO):
    """A disk that takes at most three bytes a call, and ten in all: Linux tells of a full disk with the next call."""

    def write(self, data: Any) -> int:
        taken = memoryview(data)[: min(3, 10 - self.tell())]
        if not taken:
            raise OSError(28, "No space left on device")
        return super().write(taken)


@pytest.mark.parametrize(("pieces", "fits"), [([b"abcdefgh", b"ij"], True), ([b"abcdefgh", b"ijkl"], False)])
def test_a_disk_that_takes_a_part_gets_the_rest_or_nothing_is_sent(
    pieces: list[bytes], fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_new_spool", lambda _: NearlyFull())
    sent: list[bytes] = []
    stream = base.SpooledSegment("s3://b/x", sent.append)
    if fits:
        for piece in pieces:
            stream.write(piece)
        stream.commit()
    else:
        with pytest.raises(StoreError, match="No space left on device; free space, or set TMPDIR"):
            stream.write(b"".join(pieces))
        with pytest.raises(StoreError, match="start a new segment"):
            stream.commit()
    assert sent == ([b"".join(pieces)] if fits else [])
