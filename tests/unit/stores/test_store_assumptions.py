"""What is taken for granted of stores, falsified where no other test does it: see docs/ASSUMPTIONS.md."""

from __future__ import annotations

import pytest

from tests.house.log import paths
from tests.house.protocol import COLLECT_EVERY_BATCHES
from tests.house.stores import GenericStore, MemoryStore, StoreSpec, probe
from tests.house.support import SYSTEM
from tests.support.small_run import Place, Recorder
from wal_sink.errors import ConfigError
from wal_sink.settings import Settings

KEPT = 100


@pytest.mark.parametrize("deletes", [True, False])
def test_a_store_that_deletes_nothing_changes_nothing_but_its_size(
    monkeypatch: pytest.MonkeyPatch, *, deletes: bool
) -> None:
    if not deletes:
        monkeypatch.setattr(MemoryStore, "delete", lambda *_: None)
    place, target = Place(), Recorder()
    settings = Settings(chunk_rows=2, retention_batches=KEPT)
    last = KEPT + 2 * COLLECT_EVERY_BATCHES
    place.stream(place.open({"a": target}, settings=settings), last)
    place.stream(place.open({"a": target}, settings=settings), last + 3)

    assert target.batches == list(range(last + 4))
    assert (paths.release(0) in place.wal.list("", recursive=True)) == (not deletes)


@pytest.mark.parametrize(
    ("method", "stale", "message"),
    [
        ("ls", lambda *_, **__: [], "an object that was just created is missing in the listing"),
        ("cat_file", lambda *_, **__: b"of yesterday", "came back as 12 other bytes"),
        ("pipe_file", lambda *_, **__: None, "an object that was just created cannot be found"),
    ],
)
def test_a_file_system_of_fsspec_that_answers_from_a_cache_is_refused(
    monkeypatch: pytest.MonkeyPatch, method: str, stale: object, message: str
) -> None:
    store = GenericStore(StoreSpec(f"memory://stale-{method}", single_writer=True))
    monkeypatch.setattr(store._fs, method, stale, raising=False)
    with pytest.raises(ConfigError, match=message):
        probe(store, runtime=SYSTEM, single_writer=True)
