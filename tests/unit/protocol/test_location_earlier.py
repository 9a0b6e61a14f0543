"""The place from which a WAL was moved is looked at in whatever spelling its kind of store has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.house.log import Log, Move, WalRecord, encode, paths
from tests.house.protocol import GonePlace, canonical, check_location
from tests.house.stores import StoreSpec, open_store
from tests.support.buckets import SCHEMES, buckets
from wal_sink.errors import ConfigError
from wal_sink.protocol.location import Earlier, address_at, look_at_earlier
from wal_sink.testing import simulated_runtime

PAIRS = [
    ("s3a://b/new", "s3n://b/old", "s3://b/old"),
    ("gs://b/new", "gcs://b/old", "gs://b/old"),
    ("gcs://b/new", "gs://b/a://old", "gcs://b/a://old"),
    ("az://c/new", "abfs://c/old", "az://c/old"),
    ("abfs://c@acct.dfs.core.windows.net/wal/new", "az://d/old", "abfs://d@acct.dfs.core.windows.net/old"),
    ("abfss://c@acct.dfs.core.windows.net/new", "az://c/old", "abfss://c@acct.dfs.core.windows.net/old"),
    ("hdfs://nn/wal/new", "hdfs:///old", "hdfs://nn/old"),
    ("webhdfs://nn:9870/new", "hdfs:///a/old", "webhdfs://nn:9870/a/old"),
    ("viewfs://c/new", "hdfs:///old", "viewfs://c/old"),
    ("memory://m/new", "memory://m/old", "memory://m/old"),
    ("simplecache::s3://b/new", "simplecache::s3://b/old", "simplecache::s3://b/old"),
]
"""Own URL of a WAL, place that it records, and the address there."""
OPTIONS = {"token": "t"}


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
    assert address_at(canonical(said), StoreSpec(own, OPTIONS)) == StoreSpec(expected, OPTIONS)


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
        ("hdfs://nn/new", "hdfs://other/old", StoreSpec("hdfs://other/old", OPTIONS)),
        ("webhdfs://nn:9870/new", "hdfs://other:8020/old", StoreSpec("hdfs://other:8020/old")),  # another client
        ("az://c/new", "abfs://c@old.example/old", StoreSpec("az://c@old.example/old", OPTIONS)),
        ("abfss://c@new.example/new", "abfss://c@old.example/old", StoreSpec("abfss://c@old.example/old", OPTIONS)),
        ("gs://b/new", "file:///old", StoreSpec("/old")),
        ("/new", "local:///old", StoreSpec("/old")),
    ],
)
def test_a_host_that_a_person_wrote_stays(own: str, given: str, expected: StoreSpec) -> None:
    assert address_at(given, StoreSpec(own, OPTIONS)) == expected


@pytest.mark.usefixtures("clouds")
@pytest.mark.parametrize("own", [f"{scheme}://a{number}/new" for number, scheme in enumerate(SCHEMES)])
def test_a_wal_that_lives_at_its_earlier_place_is_found_there(own: str) -> None:
    earlier = own.replace("/new", "/old")
    wal = record(canonical(earlier))
    log_at(earlier).store.create(paths.WAL, encode(wal))

    with pytest.raises(ConfigError, match="still lies at"):
        check_location(log_at(own), wal, moved=False, moved_from=earlier)
    assert look_at_earlier(log_at(own), wal, wal.location).state is Earlier.LIVES


@pytest.mark.usefixtures("clouds")
@pytest.mark.parametrize(
    "own", ["hdfs://nn1/new", "abfs://c1@acct/new", "az://c2/new", "webhdfs://nn2/new", "gs://b3/new"]
)
def test_where_nothing_is_found_absence_is_no_proof(own: str) -> None:
    """The record names no host and no account, and the options may be those of another endpoint."""
    earlier = own.replace("new", "old")
    wal = record(canonical(earlier))

    assert look_at_earlier(log_at(own), wal, wal.location).state is Earlier.GONE
    for said in (wal.location, earlier):
        with pytest.raises(ConfigError, match="it cannot be checked whether the WAL"):
            check_location(log_at(own), wal, moved=False, moved_from=said)
    check_location(log_at(own), wal, moved=False, moved_from=GonePlace(earlier))


@pytest.mark.usefixtures("clouds")
@pytest.mark.parametrize(
    ("own", "earlier"), [("hdfs://nn6/new", "hdfs://nn7/old"), ("abfs://c8@acct/new", "abfs://c8@old.example/old")]
)
def test_a_wal_that_lives_at_the_host_that_a_person_wrote_is_found_there(own: str, earlier: str) -> None:
    wal = record(canonical(earlier))
    log_at(earlier).store.create(paths.WAL, encode(wal))

    with pytest.raises(ConfigError, match="still lies at"):
        check_location(log_at(own), wal, moved=False, moved_from=earlier)


def test_a_place_that_says_that_the_wal_was_moved_here_is_over() -> None:
    wal, place, here = record("memory://over/old"), log_at("memory://over/old"), log_at("memory://over/new")
    place.store.create(paths.WAL, encode(wal))
    move = Move(number=1, location="memory://over/new", moved_from=wal.location, id="m", created="now")
    place.store.create(paths.move(1), encode(move))

    assert look_at_earlier(here, wal, wal.location).state is Earlier.OVER


def test_a_scheme_that_cannot_be_opened_is_told() -> None:
    earlier = look_at_earlier(log_at("memory://schemes/new"), record("file:///a::b"), "file:///a::b")
    assert (earlier.state, "'::'" in earlier.why) == (Earlier.UNKNOWN, True)


def test_a_place_on_another_kind_of_store_is_not_opened() -> None:
    with pytest.raises(
        ConfigError,
        match=r"at s3://b/old: it is on another kind of store, for which no options are given\. If",
    ):
        check_location(log_at("memory://kinds/new"), record("s3://b/old"), moved=False, moved_from="s3://b/old")


@pytest.mark.usefixtures("clouds")
def test_on_a_cluster_only_a_place_that_a_person_names_is_opened(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise the WAL there would be refused."""
    wal = record("hdfs:///old")
    log_at("hdfs://nn5/old").store.create(paths.WAL, encode(wal))

    check_location(log_at("hdfs://nn5/new"), wal, moved=False)

    assert "whose recorded location is hdfs:///old" in caplog.text


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


@pytest.mark.usefixtures("clouds")
@pytest.mark.parametrize(
    ("own", "said"), [("abfs://c@acct/new", "abfs://c@evil/old"), ("hdfs://nn4/new", "hdfs://evil/old")]
)
def test_no_host_that_a_record_names_is_asked(own: str, said: str) -> None:
    """The writer of the record would get the credentials of the WAL."""
    wal = record(said)
    log_at(said).store.create(paths.WAL, encode(wal))
    assert look_at_earlier(log_at(own), wal, said).state is Earlier.GONE
