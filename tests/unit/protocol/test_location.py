"""Where a WAL lies: one spelling for each place, and a copy is not taken for the WAL itself."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest

from tests.house.log import Log, Move, TermRecord, WalRecord, decode, encode, paths
from tests.house.operate import read_status
from tests.house.protocol import GonePlace, Run, canonical, check_location
from tests.house.stores import LocalStore, MemoryStore, Store, StoreSpec, open_store
from tests.support.repairs import log_on
from tests.support.servers.s3_server import S3Server
from tests.support.small_run import Place, Recorder, before_create, out_of_use, served_sink
from wal_sink.errors import ConfigError, CorruptError
from wal_sink.operate.replay import DeadLetters
from wal_sink.protocol.location import Earlier, current_location, is_plain, look_at_earlier
from wal_sink.settings import Settings
from wal_sink.testing import simulated_runtime


@pytest.mark.parametrize(
    ("urls", "expected"),
    [
        (["s3://lake/wal/orders", "s3a://lake/wal/orders/", "s3n://lake/wal/orders"], "s3://lake/wal/orders"),
        (["memory://a/wal", "memory:///a/wal/"], "memory://a/wal"),
        (["sftp://user:secret@host/wal"], "sftp://host/wal"),
        (["hdfs://one:8020/wal/orders", "webhdfs://two:9870/wal/orders", "hdfs:///wal/orders"], "hdfs:///wal/orders"),
        (["s3://Xlake/walX/"], "s3://Xlake/walX"),
        (["s3a://lake/a://b"], "s3://lake/a://b"),
        (["simplecache::s3://lake/wal", "simplecache::s3://lake/wal/"], "simplecache::s3://lake/wal"),
        (["zip:///in.zip::s3://lake/walX"], "zip:///in.zip::s3://lake/walX"),
        (["local:///", "LOCAL:///", "file:///", "/"], "file:///"),
        (["gs://lake/wal", "gcs://lake/wal/"], "gs://lake/wal"),
        (["abfs://lake/wal", "abfss://lake@account.dfs.core.windows.net/wal", "az://lake/wal"], "az://lake/wal"),
        (["abfss://lake@account.dfs.core.windows.net/wal/ordersX/"], "az://lake/wal/ordersX"),
        (["az://lake", "wasbs://lake@account.blob.core.windows.net/"], "az://lake"),
    ],
)
def test_a_place_has_one_spelling(urls: list[str], expected: str) -> None:
    assert {canonical(url) for url in urls} == {expected}


def test_a_local_place_is_its_path_without_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")

    expected = f"file://{os.path.realpath(tmp_path)}/real/wal"

    assert {canonical(str(tmp_path / name / "wal")) for name in ("real", "link")} == {expected}
    assert canonical((tmp_path / "link/wal").as_uri()) == expected


@pytest.mark.parametrize(
    ("is_safe", "urls"),
    [
        (
            True,
            ["/wal", "wal", "/a:b/wal", "file:///wal", "local:///wal", "memory://wal", "s3://lake/wal", "S3A://l/w"],
        ),
        (False, ["http://host:80/wal", "github://org:repo@/wal", "zip::s3://lake/wal", "file:///a.zip::http://host"]),
    ],
)
def test_a_recorded_url_may_name_a_path_or_a_store_of_bytes_only(is_safe: bool, urls: list[str]) -> None:
    assert {url: is_plain(url) for url in urls} == dict.fromkeys(urls, is_safe)


def record(location: str, wal_id: str = "w") -> WalRecord:
    return WalRecord(
        wal_id=wal_id, query_id="q", checkpoint="c", first_batch=0, location=location, id="x", created="now"
    )


def log_at(store: Store) -> Log:
    return Log(store, simulated_runtime(), "run")


def local(folder: Path) -> Log:
    return log_at(LocalStore(StoreSpec(str(folder))))


def in_memory(name: str) -> Log:
    return log_at(MemoryStore(StoreSpec(f"memory://{name}")))


def test_a_new_wal_says_where_it_lies() -> None:
    place = Place()
    place.stream(place.open({"a": Recorder()}), 0)

    assert decode(WalRecord, place.wal.read(paths.WAL), "it").location == canonical(place.wal.root)
    assert read_status(place.wal).location == place.wal.root


def copied(place: Place) -> Place:
    """The same objects at another place."""
    copy = Place(checkpoint=place.checkpoint)
    for name in place.wal.list("", recursive=True):
        copy.wal.create(name, place.wal.read(name))
    return copy


def test_a_copy_in_another_bucket_is_refused_before_anything_is_written() -> None:
    place = Place()
    place.stream(place.open({"a": Recorder()}), 1)
    copy = copied(place)
    before = copy.wal.list("", recursive=True)

    with pytest.raises(
        ConfigError,
        match=rf"{copy.wal.root} holds the WAL .* recorded location of this WAL is {place.wal.root}: .*moved_from=",
    ):
        copy.open({"a": Recorder()})

    assert copy.wal.list("", recursive=True) == before


def moved_run(place: Place, moved_from: str) -> Run:
    run = Run(place.wal, place.checkpoint, Settings(chunk_rows=2), runtime=simulated_runtime())
    run.open([served_sink(run, "a", Recorder())], moved_from=moved_from)
    return run


def test_a_move_is_said_once() -> None:
    place = Place()
    place.stream(place.open({"a": Recorder()}), 1)
    copy = copied(place)

    with out_of_use(place.wal):
        run = moved_run(copy, place.wal.root)
    copy.open({"a": Recorder()})
    moved_run(copy, "memory://whatever")  # it lies where it says: nothing is to be moved

    move = decode(Move, copy.wal.read(paths.move(1)), "it")
    assert (move.location, move.moved_from) == (copy.wal.root, place.wal.root)
    assert copy.wal.list(paths.MOVES) == ["0000000001.json"]
    assert read_status(copy.wal).location == copy.wal.root
    there = log_at(place.wal)
    fencing = there.require(TermRecord, paths.term("stager", there.numbers(paths.terms("stager"))[-1]))
    assert fencing.run_id == run.log.run_id


def test_a_wal_that_was_moved_on_is_refused_where_it_was_before() -> None:
    first, second = Place(), None
    first.stream(first.open({"a": Recorder()}), 1)
    second = copied(first)
    with out_of_use(first.wal):
        moved_run(second, first.wal.root)
    third = copied(second)
    with out_of_use(second.wal):
        moved_run(third, second.wal.root)

    assert third.wal.list(paths.MOVES) == ["0000000001.json", "0000000002.json"]
    with pytest.raises(ConfigError, match=f"recorded location of this WAL is {third.wal.root}"):
        copied(third).open({"a": Recorder()})


def test_a_move_from_elsewhere_is_refused() -> None:
    place = Place()
    place.stream(place.open({"a": Recorder()}), 1)
    copy = copied(place)

    with pytest.raises(
        ConfigError,
        match=rf"moved_from is memory://other/wal, but the recorded location of the WAL \w+ in .* is {place.wal.root}",
    ):
        moved_run(copy, "memory://other/wal")


def test_a_drain_that_waited_for_the_first_batch_looks_where_it_is_too() -> None:
    place, copy = Place(), Place()
    waiting = copy.open({})
    place.stream(place.open({"a": Recorder()}), 0)
    copy.wal.create(paths.WAL, place.wal.read(paths.WAL))
    copy.checkpoint.create("metadata", place.checkpoint.read("metadata"))

    with pytest.raises(ConfigError, match="holds the WAL"):
        waiting.history.poll_owner()


def test_a_drain_that_waited_for_the_first_batch_knows_a_wal_that_was_moved_to_it() -> None:
    place = Place()
    elsewhere = Place(checkpoint=place.checkpoint)
    waiting = elsewhere.open({})
    place.stream(place.open({"a": Recorder()}), 0)
    wal = decode(WalRecord, place.wal.read(paths.WAL), "it")
    place.wal.delete(place.wal.list("", recursive=True))
    check_location(log_at(elsewhere.wal), wal, moved=False, moved_from=GonePlace(place.wal.root))
    elsewhere.wal.create(paths.WAL, encode(wal))

    assert waiting.history.poll_owner() == wal


def test_dead_letters_of_a_copy_are_not_sent() -> None:
    place = Place()
    place.stream(place.open({"a": Recorder()}), 0)
    letters = DeadLetters(log_at(copied(place).wal), name="a")

    with pytest.raises(ConfigError, match="Two copies of one WAL"):
        letters.replay(Recorder())

    assert DeadLetters(log_at(place.wal), name="a").replay(Recorder()).letters == 0


def test_a_place_that_says_that_the_wal_was_moved_may_stay() -> None:
    place, copy = Place(), Place()
    place.stream(place.open({"a": Recorder()}), 0)
    wal = decode(WalRecord, place.wal.read(paths.WAL), "it")
    move = Move(number=1, location=copy.wal.root, moved_from=place.wal.root, id="m", created="now")
    place.wal.create(paths.move(1), encode(move))

    check_location(log_at(copy.wal), wal, moved=False, moved_from=place.wal.root)

    assert copy.wal.list(paths.MOVES) == ["0000000001.json"]


def test_an_earlier_place_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    said = f"file://{tmp_path}/old"
    local(tmp_path / "old").store.create(paths.WAL, b"no record")

    with pytest.raises(ConfigError, match=r"it cannot be checked .*expected a wal record.*moved_from_gone"):
        check_location(local(tmp_path / "new"), record(said), moved=False, moved_from=said)

    assert not (tmp_path / "new/moves").exists()


def test_a_folder_that_is_mounted_twice_is_no_second_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wal = record(f"file://{tmp_path}/mounted")
    local(tmp_path / "new").store.create(paths.WAL, encode(wal))
    (tmp_path / "mounted").symlink_to("new")
    monkeypatch.setattr(os.path, "realpath", str)

    assert look_at_earlier(local(tmp_path / "new"), wal, wal.location).state is Earlier.OVER
    check_location(local(tmp_path / "new"), wal, moved=False, moved_from=f"file://{tmp_path}/mounted")

    assert (tmp_path / "new/moves/0000000001.json").exists()


def test_a_move_to_this_folder_under_another_path_is_one_to_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = record(f"file://{tmp_path}/old")
    move = Move(number=1, location=f"file://{tmp_path}/mounted", moved_from=wal.location, id="m", created="now")
    for path, what in ((paths.WAL, wal), (paths.move(1), move)):
        local(tmp_path / "old").store.create(path, encode(what))
    local(tmp_path / "new").store.create(paths.WAL, encode(wal))
    (tmp_path / "mounted").symlink_to("new")
    monkeypatch.setattr(os.path, "realpath", str)

    assert look_at_earlier(local(tmp_path / "new"), wal, wal.location).state is Earlier.OVER


def test_a_wal_that_lies_where_its_record_says_costs_no_request() -> None:
    asked: list[str] = []
    log = log_on(in_memory("costs/none").store, lambda what, where: asked.append(f"{what} {where}"))

    check_location(log, record("memory://costs/none"), moved=False)

    assert asked == []


def test_a_wal_that_is_not_made_yet_is_no_second_mount(tmp_path: Path) -> None:
    wal = record(f"file://{tmp_path}/old")
    local(tmp_path / "old").store.create(paths.WAL, encode(wal))

    assert look_at_earlier(local(tmp_path / "new"), wal, wal.location).state is Earlier.LIVES
    with pytest.raises(ConfigError, match="still lies at"):  # "new" does not exist yet
        check_location(local(tmp_path / "new"), wal, moved=False, moved_from=f"file://{tmp_path}/old")


def another_moves_first(log: Log, location: str) -> None:
    move = Move(number=1, location=location, moved_from="memory://old", id="other", created="now")
    before_create(log.store, paths.move(1), lambda: log.store.create(paths.move(1), encode(move)))


def test_of_two_who_say_the_same_both_go_on() -> None:
    log = in_memory("both/same")
    another_moves_first(log, "memory://both/same")

    check_location(log, record("memory://old"), moved=False, moved_from=GonePlace("memory://old"))

    assert current_location(log, record("memory://old"), moved=True) == "memory://both/same"


def test_of_two_who_say_different_things_the_second_is_refused() -> None:
    log = in_memory("both/other")
    another_moves_first(log, "memory://elsewhere")

    with pytest.raises(ConfigError, match=r"another process has just moved this WAL .* to memory://elsewhere"):
        check_location(log, record("memory://old"), moved=False, moved_from=GonePlace("memory://old"))


def test_a_move_that_vanishes_is_told() -> None:
    log = in_memory("vanishing")
    log.store.list = lambda *_, **__: ["0000000001.json"]  # type: ignore[method-assign]

    with pytest.raises(CorruptError, match=r"moves/0000000001\.json disappeared"):
        current_location(log, record("memory://old"), moved=True)


def warned(caplog: pytest.LogCaptureFixture) -> bool:
    return any("whose recorded location is" in line for line in caplog.messages)


@pytest.mark.parametrize("lies_there", [None, "nothing", "another WAL"])
def test_another_local_path_is_a_warning_since_mounts_differ(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lies_there: str | None
) -> None:
    (tmp_path / "at:new").mkdir()
    if lies_there is not None:
        (tmp_path / "at:old").mkdir()
    if lies_there == "another WAL":
        local(tmp_path / "at:old").store.create(paths.WAL, encode(record("", wal_id="another")))
    with caplog.at_level(logging.WARNING):
        check_location(local(tmp_path / "at:new"), record(f"file://{tmp_path}/at:old"), moved=False)

    assert warned(caplog)


def test_another_local_path_is_refused_if_the_old_one_holds_the_same_wal(tmp_path: Path) -> None:
    wal = record(f"file://{tmp_path}/old")
    local(tmp_path / "old").store.create(paths.WAL, encode(wal))
    shutil.copytree(tmp_path / "old", tmp_path / "new")

    with pytest.raises(ConfigError, match=r": that folder exists too, and holds the same WAL\. "):
        check_location(local(tmp_path / "new"), wal, moved=False)


def test_one_folder_under_two_paths_is_no_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a disk is mounted twice: here a link stands for the second mount."""
    wal = record(f"file://{tmp_path}/mounted")
    local(tmp_path / "new").store.create(paths.WAL, encode(wal))
    (tmp_path / "mounted").symlink_to("new")
    monkeypatch.setattr(os.path, "realpath", str)

    check_location(local(tmp_path / "new"), wal, moved=False)

    assert warned(caplog)


def test_what_cannot_be_read_at_the_old_path_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    local(tmp_path / "old").store.create(paths.WAL, b"no record")
    (tmp_path / "new").mkdir()

    check_location(local(tmp_path / "new"), record(f"file://{tmp_path}/old"), moved=False)

    assert "it is not known whether the folder file://" in caplog.text
    assert f"{tmp_path}/old/wal.json: expected a wal record" in caplog.text
    assert warned(caplog)


def test_another_host_is_a_warning_and_another_kind_of_store_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Elsewhere(MemoryStore):
        @property
        def root(self) -> str:
            return "sftp://host/wal"

    check_location(log_at(Elsewhere(StoreSpec("memory://x"))), record("sftp://other/wal"), moved=False)
    assert warned(caplog)

    with pytest.raises(ConfigError, match=r": this is another place\. "):
        check_location(local(tmp_path), record("s3://lake/wal"), moved=False)


@pytest.mark.s3
def test_the_earlier_place_is_looked_at_with_the_options_of_the_wal(s3_server: S3Server, s3_url: str) -> None:
    one, two = (log_at(open_store(StoreSpec(f"{s3_url}/{name}", s3_server.storage_options))) for name in ("1", "2"))
    wal = record(f"{s3_url}/1")
    one.store.create(paths.WAL, encode(wal))

    with pytest.raises(ConfigError, match=r"its wal\.json still lies at"):
        check_location(two, wal, moved=False, moved_from=f"{s3_url}/1")
