"""An earlier place on S3."""

from __future__ import annotations

import pytest

from tests.support.servers.s3_server import S3Server
from wal_sink.errors import ConfigError
from wal_sink.recovery.location import check_location
from wal_sink.stores.base import Store
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import simulated_runtime
from wal_sink.wal import paths
from wal_sink.wal.log import Log
from wal_sink.wal.records import WalRecord, encode


def record(location: str, wal_id: str = "w") -> WalRecord:
    return WalRecord(
        wal_id=wal_id, query_id="q", checkpoint="c", first_batch=0, location=location, id="x", created="now"
    )


def log_at(store: Store) -> Log:
    return Log(store, simulated_runtime(), "run")


@pytest.mark.s3
def test_the_earlier_place_is_looked_at_with_the_options_of_the_wal(s3_server: S3Server, s3_url: str) -> None:
    one, two = (log_at(open_store(StoreSpec(f"{s3_url}/{name}", s3_server.storage_options))) for name in ("1", "2"))
    wal = record(f"{s3_url}/1")
    one.store.create(paths.WAL, encode(wal))

    with pytest.raises(ConfigError, match=r"its wal\.json still lies at"):
        check_location(two, wal, moved=False, moved_from=f"{s3_url}/1")
