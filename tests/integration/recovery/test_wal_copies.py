"""A copy of a WAL on S3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.support.small_run import Place, Recorder
from wal_sink.errors import ConfigError
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec

if TYPE_CHECKING:
    from tests.support.servers.s3_server import S3Server


def copy_of(place: Place, to: Place | None = None) -> Place:
    """Both folders, at another place."""
    made = to or Place()
    for store, other in ((place.wal, made.wal), (place.checkpoint, made.checkpoint)):
        for name in store.list("", recursive=True):
            other.create(name, store.read(name))
    return made


@pytest.mark.s3
def test_so_is_one_on_s3(s3_server: S3Server, s3_url: str) -> None:
    original = Place(wal=cast("Any", open_store(StoreSpec(f"{s3_url}/one", s3_server.storage_options))))
    original.stream(original.open({"a": Recorder()}), 0)
    other = Place(wal=cast("Any", open_store(StoreSpec(f"{s3_url}/two", s3_server.storage_options))))

    with pytest.raises(
        ConfigError, match=r"/two holds the WAL .* recorded location of this WAL is .*/one: this is another place"
    ):
        copy_of(original, other).open({"a": Recorder()})
