"""The place from which a WAL was moved is looked at in whatever spelling its kind of store has."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.buckets import SCHEMES, buckets
from wal_sink.errors import ConfigError
from wal_sink.recovery.location import Earlier, address_at, canonical, check_location, doubt_of_absence, look_at_earlier
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import simulated_runtime
from wal_sink.wal import paths
from wal_sink.wal.log import Log
from wal_sink.wal.records import Move, WalRecord, encode

PAIRS = [
    ("s3a://b/new", "s3n://b/old", "s3://b/old"),
    ("gs://b/new", "gcs://b/old", "gs://b/old"),
    ("gcs://b/new", "gs://b/old", "gcs://b/old"),
    ("az://c/new", "abfs://c/old", "az://c/old"),
    ("abfs://c@acct.dfs.core.windows.net/new", "az://d/old", "abfs://d@acct.dfs.core.windows.net/old"),
    ("abfss://c@acct.dfs.core.windows.net/new", "az://c/old", "abfss://c@acct.dfs.core.windows.net/old"),
    ("hdfs://nn/new", "hdfs:///old", "hdfs://nn/old"),
    ("webhdfs://nn:9870/new", "hdfs:///a/old", "webhdfs://nn:9870/a/old"),
    ("viewfs://c/new", "hdfs:///old", "viewfs://c/old"),
    ("memory://m/new", "memory://m/old", "memory://m/old"),
    ("simplecache::s3://b/new", "simplecache::s3://b/old", "simplecache::s3://b/old"),
]
"""Own URL of a WAL, place that it records, and the address there."""


@pytest.fixture
def clouds() -> Iterator[None]:
    with buckets():
        yield


def record(location: str) -> WalRecord:
    return WalRecord(wal_id="w", query_id="q", checkpoint="c", first_batch=0, location=location, id="x", created="now")


def log_at(url: str) -> Log:
    return Log(open_store(StoreSpec(url)), simulated_runtime(), "run")


@pytest.mark.usefixtures("clouds")
@pytest.mark.parametrize(("own", "said", "expected"), PAIRS)
def test_the_address_has_the_scheme_the_authority_and_the_options_of_the_wal(
    own: str, said: str, expected: str
) -> None:
    found = address_at(canonical(said), StoreSpec(own, {"token": "t"}))
    assert found == StoreSpec(expected, {"token": "t"})


@pytest.mark.usefixtures("clouds")
@pytest.mark.parametrize(
    ("own", "said"),
    [
        ("gs://b/new", "s3://b/old"),
        ("gs://b/new", "simplecache::gs://b/old"),
        ("hdfs://nn/new", "az://c/old"),
        (None, "s3://b/old"),
    ],
)
def test_another_kind_of_store_has_no_address(own: str | None, said: str) -> None:
    assert address_at(said, None if own is None else StoreSpec(own)) is None


@pytest.mark.usefixtures("clouds")
@pytest.mark.parametrize(
    ("own", "given", "expected"),
    [
        ("hdfs://nn/new", "hdfs://other/old", StoreSpec("hdfs://other/old", {"token": "t"})),
        ("webhdfs://nn:9870/new", "hdfs://other:8020/old", "hdfs://other:8020/old"),
        ("az://c/new", "abfs://c@old.dfs.core.windows.net/old", "az://c@old.dfs.core.windows.net/old"),
        ("gs://b/new", "file:///old", "file:///old"),
        ("/new", "local:///old", StoreSpec("/old", {"token": "t"})),
    ],
)
def test_a_host_that_a_person_wrote_stays(own: str, given: str, expected: str | StoreSpec) -> None:
    found = address_at(given, StoreSpec(own, {"token": "t"}))
    assert found is not None
    assert (found if isinstance(expected, StoreSpec) else found.url) == expected
    if given.partition(":")[0] in {"hdfs", "file"} and not isinstance(expected, StoreSpec):
        assert found.options == {}  # those of the WAL are for another client


@pytest.mark.usefixtures("clouds")
@pytest.mark.parametrize("own", [f"{scheme}://a{number}/new" for number, scheme in enumerate(SCHEMES)])
def test_a_wal_that_lives_at_its_earlier_place_is_found_there(own: str) -> None:
    earlier = own.replace("/new", "/old")
    wal = record(canonical(earlier))
    log_at(earlier).store.create(paths.WAL, encode(wal))

    with pytest.raises(ConfigError, match="but it still lies there"):
        check_location(log_at(own), wal, moved=False, moved_from=earlier)
    assert look_at_earlier(log_at(own), wal, wal.location).state is Earlier.LIVES


@pytest.mark.usefixtures("clouds")
@pytest.mark.parametrize("own", ["hdfs://nn1/new", "abfs://c1@acct/new", "az://c2/new", "webhdfs://nn2/new"])
def test_where_the_record_names_no_host_absence_is_no_proof(own: str, caplog: pytest.LogCaptureFixture) -> None:
    wal = record(canonical(own.replace("new", "old")))

    earlier = look_at_earlier(log_at(own), wal, wal.location)

    assert (earlier.state, "it names no" in earlier.why_unknown) == (Earlier.UNKNOWN, True)
    with caplog.at_level(logging.WARNING):
        check_location(log_at(own), wal, moved=False, moved_from=wal.location)
    assert "could not look whether the WAL still lies at" in caplog.text


@pytest.mark.usefixtures("clouds")
@pytest.mark.parametrize("own", ["hdfs://nn3/new", "abfs://c3@acct/new", "gs://b3/new"])
def test_where_a_person_names_it_absence_is_one(own: str, caplog: pytest.LogCaptureFixture) -> None:
    earlier = own.replace("new", "old")
    check_location(log_at(own), record(canonical(earlier)), moved=False, moved_from=earlier)
    assert "could not look" not in caplog.text


def test_a_scheme_that_cannot_be_opened_is_told() -> None:
    earlier = look_at_earlier(log_at("memory://schemes/new"), record("file:///a::b"), "file:///a::b")
    assert (earlier.state, "'::'" in earlier.why_unknown) == (Earlier.UNKNOWN, True)


def test_a_copy_of_a_place_that_says_it_was_moved_elsewhere_is_refused_and_the_third_place_is_named() -> None:
    wal = record("memory://thirds/a")
    place = log_at("memory://thirds/a")
    place.store.create(paths.WAL, encode(wal))
    move = Move(number=1, location="memory://thirds/b", moved_from="memory://thirds/a", id="m", created="now")
    place.store.create(paths.move(1), encode(move))
    copy = log_at("memory://thirds/c")

    with pytest.raises(ConfigError, match=r"says that the WAL was moved to memory://thirds/b\. .*Open the WAL at"):
        check_location(copy, wal, moved=False, moved_from="memory://thirds/a")

    assert copy.store.list(paths.MOVES) == []
    check_location(log_at("memory://thirds/b"), wal, moved=False, moved_from="memory://thirds/a")


@pytest.mark.parametrize("said", ["/", "s3://b/k", "gs://b/k", "hdfs://nn/k", "abfs://c@acct/k", "memory://m"])
def test_absence_is_sure_where_the_whole_place_is_named(said: str) -> None:
    assert doubt_of_absence(said) == ""


def test_a_folder_that_this_machine_does_not_show_is_no_proof_of_absence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It lies on a share that is mounted on another machine only, where a process may go on."""
    said = f"file://{tmp_path}/mnt/wal"
    assert doubt_of_absence(said).startswith("it is not visible from here")
    with caplog.at_level(logging.WARNING):
        check_location(log_at("memory://unseen/a"), record(said), moved=False, moved_from=said)
    assert "could not look whether the WAL still lies at" in caplog.text
    assert "it is not visible from here" in caplog.text
    caplog.clear()

    (tmp_path / "mnt").mkdir()

    assert doubt_of_absence(said) == ""
    check_location(log_at("memory://unseen/b"), record(said), moved=False, moved_from=said)
    assert "could not look" not in caplog.text


def test_nor_is_one_above_which_nothing_may_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> bool:
        raise PermissionError

    monkeypatch.setattr(Path, "is_dir", refuse)
    assert doubt_of_absence(str(tmp_path / "wal")).startswith("it is not visible from here")


@pytest.mark.usefixtures("clouds")
@pytest.mark.parametrize(
    ("own", "said"), [("abfs://c@acct/new", "abfs://c@evil/old"), ("hdfs://nn4/new", "hdfs://evil/old")]
)
def test_no_host_that_a_record_names_is_asked(own: str, said: str) -> None:
    """The writer of the record would get the credentials of the WAL."""
    wal = record(said)
    log_at(said).store.create(paths.WAL, encode(wal))
    assert look_at_earlier(log_at(own), wal, said).state is Earlier.UNKNOWN
