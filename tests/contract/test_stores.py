"""One contract, every store."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import shutil
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from botocore.exceptions import ClientError
from fsspec.implementations.memory import MemoryFileSystem

from tests.house.stores import (
    GenericStore,
    LocalStore,
    ObjectExists,
    ObjectMissing,
    S3Store,
    Store,
    StoreSpec,
    open_store,
    opening,
    probe,
)
from tests.house.support import SYSTEM, Runtime
from tests.support.contending import contend_for_names
from tests.support.forked import FORKS
from tests.support.servers.azurite import AzuriteServer
from tests.support.servers.ports import listening
from tests.support.servers.s3_server import S3Server
from wal_sink.errors import ConfigError, OutcomeUnknownError, StoreError
from wal_sink.stores.creation import LEFT_BEHIND_S, new_object
from wal_sink.stores.local import sync_folder

pytest_plugins = ["tests.support.fixtures.servers"]

_numbers = itertools.count()


Fixture = Callable[[str], Any]
"""Returns a fixture by its name."""


def bucket_of(fixture: str, scheme: str) -> Callable[[Fixture, str], StoreSpec]:
    """Return a function that gives a new prefix of this server's bucket."""

    def new(get: Fixture, prefix: str) -> StoreSpec:
        server = get(fixture)
        return StoreSpec(f"{scheme}://{server.bucket}/{prefix}", server.storage_options)

    return new


def azure(get: Fixture, prefix: str) -> StoreSpec:
    server: AzuriteServer = get("azurite")
    return StoreSpec(f"abfs://{server.container}/{prefix}", server.storage_options)


SERVERS: Mapping[str, Callable[[Fixture, str], StoreSpec]] = {
    "s3": bucket_of("s3_server", "s3"),
    "seaweedfs": bucket_of("seaweedfs", "s3"),
    "minio": bucket_of("minio", "s3"),
    "gcs": bucket_of("fake_gcs", "gs"),
    "azurite": azure,
    "hdfs": lambda get, _: StoreSpec(get("hdfs").url + get("hdfs").new_folder()),
    "webhdfs": lambda get, _: StoreSpec(get("hdfs").webhdfs_url + get("hdfs").new_folder()),
}
"""A new place on each server."""


@pytest.fixture(
    params=[
        *("local", "memory", "generic-file"),
        *(pytest.param(kind, marks=[pytest.mark.s3, pytest.mark.processes]) for kind in ("s3", "seaweedfs", "minio")),
        *(pytest.param(kind, marks=[pytest.mark.hdfs, pytest.mark.processes]) for kind in ("hdfs", "webhdfs")),
        *(pytest.param(kind, marks=pytest.mark.processes) for kind in ("azurite", "gcs")),
    ]
)
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> StoreSpec:
    kind = request.param
    if kind in SERVERS:
        return SERVERS[kind](request.getfixturevalue, f"contract-{kind}-{next(_numbers)}")
    urls = {
        "local": f"file://{tmp_path}/new/wal",
        "memory": f"memory://contract-{next(_numbers)}",
        "generic-file": f"file://{tmp_path}/new/wal",
    }
    return StoreSpec(urls[kind], single_writer=kind.startswith("generic"))


@pytest.fixture
def store(spec: StoreSpec, request: pytest.FixtureRequest) -> Store:
    generic = "generic" in request.node.callspec.params["spec"]
    return GenericStore(spec) if generic else open_store(spec)


def shown(store: Store, folder: str) -> list[str]:
    """The names in a folder, without the empty folders that SeaweedFS shows for minutes."""
    seaweed = isinstance(store, S3Store) and "-seaweedfs-" in store.root
    there = store.list("", recursive=True)
    head = f"{folder}/" if folder else ""
    return [
        name
        for name in store.list(folder)
        if not (seaweed and name.endswith("/")) or any(path.startswith(head + name) for path in there)
    ]


def another(spec: StoreSpec, store: Store) -> Store:
    """Return another store of the same kind, under the same address."""
    return GenericStore(spec) if isinstance(store, GenericStore) else opening._new_store(spec)


def fill(store: Store, *paths: str) -> None:
    for path in paths:
        store.create(path, path.encode())


def outcomes(
    step: Callable[[str], object], paths: Iterable[str], expected: type[StoreError], told: str
) -> dict[str, str]:
    """Return what happens at the paths where the step does not raise what is expected."""
    found = {}
    for path in paths:
        try:
            found[path] = f"no error, {step(path)!r}"
        except expected as error:
            found[path] = "" if told in str(error) else str(error)
        except StoreError as error:
            found[path] = repr(error)
    return {path: outcome for path, outcome in found.items() if outcome}


class TestCreateAndRead:
    def test_what_was_created_is_read(self, store: Store) -> None:
        store.create("a/b/c.json", b"content")
        assert store.read("a/b/c.json") == b"content"

    def test_a_second_create_is_refused_and_changes_nothing(self, store: Store) -> None:
        store.create("a.json", b"first")
        with pytest.raises(ObjectExists, match=r"a\.json exists"):
            store.create("a.json", b"second")
        assert store.read("a.json") == b"first"

    def test_any_bytes_come_back(self, store: Store) -> None:
        for number, data in enumerate((b"", bytes(range(256)), "ünïcödé ☃ 𝄞".encode())):
            store.create(f"a{number}", data)
            assert store.read(f"a{number}") == data
            with pytest.raises(ObjectExists):
                store.create(f"a{number}", b"")
            assert store.read(f"a{number}") == data

    def test_unicode_and_blanks_in_paths(self, store: Store) -> None:
        store.create("ördner/ein name+%20☃.json", b"x")
        assert store.read("ördner/ein name+%20☃.json") == b"x"
        assert store.list("ördner") == ["ein name+%20☃.json"]
        store.delete(["ördner/ein name+%20☃.json"])
        assert store.list("", recursive=True) == []

    def test_an_absent_object_is_missing(self, store: Store) -> None:
        fill(store, "a", "folder/x")
        assert outcomes(store.read, ["absent", "absent/deep", "a/b", "folder"], ObjectMissing, "does not exist") == {}

    def test_paths_that_not_every_store_can_hold_are_refused(self, store: Store) -> None:
        paths = ["", "/a", "a//b", "a/", "../a", "a/../../b", ".hidden", "a/.b", "a?versionId=1"]
        refused = "is not a path of an object"
        assert outcomes(lambda path: store.create(path, b"x"), paths, StoreError, refused) == {}
        assert outcomes(store.segment, paths, StoreError, refused) == {}

    def test_one_of_eight_threads_wins_each_round(self, store: Store) -> None:
        rounds = 25

        def contend(number: int) -> list[int]:
            won = []
            for turn in range(rounds):
                barrier.wait()
                try:
                    store.create(f"race/{turn:04d}", f"{turn}-{number}".encode())
                except ObjectExists:
                    continue
                won.append(turn)
            return won

        barrier = threading.Barrier(8)
        with ThreadPoolExecutor(8) as pool:
            wins = list(pool.map(contend, range(8)))
        assert sorted(turn for won in wins for turn in won) == list(range(rounds))
        for number, won in enumerate(wins):
            assert all(store.read(f"race/{turn:04d}") == f"{turn}-{number}".encode() for turn in won)


class TestList:
    def test_a_folder_shows_its_objects_and_its_folders(self, store: Store) -> None:
        fill(store, "b/2.json", "b/1.json", "b/1/x", "b/1/y/z", "b.json", "bb/x")
        assert store.list("b") == ["1.json", "1/", "2.json"]
        assert store.list("b/") == ["1.json", "1/", "2.json"]
        assert store.list("") == ["b.json", "b/", "bb/"]

    def test_recursive_shows_every_object_by_its_path(self, store: Store) -> None:
        fill(store, "b/2.json", "b/1/x", "b/1/y/z", "b/1.json", "c")
        assert store.list("b", recursive=True) == ["1.json", "1/x", "1/y/z", "2.json"]
        assert store.list("", recursive=True) == ["b/1.json", "b/1/x", "b/1/y/z", "b/2.json", "c"]

    def test_after_compares_with_the_name_as_shown(self, store: Store) -> None:
        fill(store, "n/0004/a", "n/0005/a", "n/0005/z", "n/0006/a", "n/0005.json")
        expected = {
            "": ["0004/", "0005.json", "0005/", "0006/"],
            "0004/": ["0005.json", "0005/", "0006/"],
            "0005": ["0005.json", "0005/", "0006/"],
            "0005.json": ["0005/", "0006/"],
            "0005/": ["0006/"],
            "0005/x": ["0006/"],
            "00050": ["0006/"],
            "0006": ["0006/"],
            "0006/": [],
            "0007": [],
        }
        assert {after: store.list("n", after=after) for after in expected} == expected

    def test_after_in_a_recursive_listing_is_a_path(self, store: Store) -> None:
        fill(store, "n/1/a", "n/1/b", "n/2/a", "n/3")
        assert store.list("n", after="1/a", recursive=True) == ["1/b", "2/a", "3"]
        assert store.list("n", after="1/", recursive=True) == ["1/a", "1/b", "2/a", "3"]

    def test_an_object_is_no_folder(self, store: Store) -> None:
        fill(store, "a", "b/c")
        for path in ("a", "b/c"):
            assert store.list(path) == store.list(path, recursive=True) == []

    def test_an_absent_folder_is_empty(self, store: Store) -> None:
        assert store.list("nowhere") == []
        assert store.list("nowhere/deep", recursive=True) == []
        assert store.list("") == []

    def test_another_instance_sees_everything_at_once(self, store: Store, spec: StoreSpec) -> None:
        other = another(spec, store)
        assert other.list("a") == []
        store.create("a/1", b"x")
        assert other.list("a") == ["1"]
        assert other.read("a/1") == b"x"
        other.delete(["a/1"])
        assert store.list("a") == []


class TestDelete:
    def test_deleted_objects_are_gone_and_their_paths_free(self, store: Store) -> None:
        fill(store, "a/1", "a/2", "a/b/3")
        store.delete(iter(["a/1", "a/b/3"]))
        assert store.list("", recursive=True) == ["a/2"]
        assert shown(store, "a") == ["2"]
        with pytest.raises(ObjectMissing):
            store.read("a/1")
        store.create("a/b/3", b"again")
        assert store.read("a/b/3") == b"again"

    def test_absent_objects_are_no_error(self, store: Store) -> None:
        fill(store, "a/1")
        store.delete(["a/absent", "nowhere/x", "a/1", "a/1"])
        store.delete([])
        assert shown(store, "") == []


class TestSegments:
    def test_nothing_shows_before_commit_and_all_after(self, store: Store) -> None:
        with store.segment("s/1.parquet") as stream:
            stream.write(b"abc")
            stream.write(memoryview(b"def"))
            assert store.list("") == []
            with pytest.raises(ObjectMissing):
                store.read("s/1.parquet")
            stream.commit()
            assert store.read("s/1.parquet") == b"abcdef"
        assert store.list("s") == ["1.parquet"]

    def test_leaving_without_commit_leaves_nothing(self, store: Store) -> None:
        with store.segment("s/1.parquet") as stream:
            stream.write(b"abc")
        assert store.list("", recursive=True) == []
        assert store.list("") == []

    def test_an_exception_inside_leaves_nothing(self, store: Store) -> None:
        with pytest.raises(KeyError), store.segment("s/1.parquet") as stream:  # noqa: PT012 - the exception is the test's own
            stream.write(b"abc")
            raise KeyError("not of the stream")
        assert store.list("") == []
        with pytest.raises(ObjectMissing):
            store.read("s/1.parquet")

    def test_abort_is_harmless_after_commit_and_when_repeated(self, store: Store) -> None:
        stream = store.segment("s/1")
        stream.write(b"x")
        stream.commit()
        stream.abort()
        stream.abort()
        assert store.read("s/1") == b"x"

    def test_a_finished_stream_takes_nothing_more(self, store: Store) -> None:
        stream = store.segment("s/1")
        stream.abort()
        for call in (partial(stream.write, b"x"), stream.commit):
            with pytest.raises(StoreError, match="start a new segment"):
                call()

    @pytest.mark.filterwarnings("ignore:Sending a large body")  # by the client of Azure
    def test_twenty_mebibytes(self, store: Store) -> None:
        piece = os.urandom(1 << 20)
        with store.segment("s/large") as stream:
            for _ in range(20):
                stream.write(piece)
            stream.commit()
        assert store.read("s/large") == piece * 20

    def test_an_empty_segment(self, store: Store) -> None:
        with store.segment("s/empty") as stream:
            stream.commit()
        assert store.read("s/empty") == b""


class TestMessages:
    def test_addresses_and_pickled_errors(self, store: Store, spec: StoreSpec) -> None:
        assert store.root == spec.safe_url
        assert store.url_of("a/b") == f"{spec.safe_url}/a/b"
        with pytest.raises(ObjectMissing) as caught:
            store.read("absent")
        copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own bytes
        assert (type(copy), str(copy)) == (ObjectMissing, str(caught.value))
        assert "test-secret-key" not in repr(caught.value)


class TestGenericFailures:
    """Errors of fsspec's many file systems may hold anything, their options included."""

    STEPS: ClassVar[dict[str, Callable[[Store], object]]] = {
        "pipe_file": lambda store: store.create("a", b"x"),
        "cat_file": lambda store: store.read("a"),
        "ls": lambda store: store.list(""),
        "rm_file": lambda store: store.delete(["a"]),
    }

    @pytest.mark.parametrize("method", STEPS)
    def test_no_secret_in_a_traceback(self, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
        store = GenericStore(StoreSpec("memory://failing", {"token": "hush-hush"}, single_writer=True))

        def fail(*_: object, **__: object) -> None:
            try:
                raise RuntimeError("401 for hush-hush")
            except RuntimeError as error:
                raise OSError("not allowed") from error

        monkeypatch.setattr(store._fs, method, fail, raising=False)
        with pytest.raises(StoreError, match="not allowed") as caught:
            self.STEPS[method](store)
        assert "hush-hush" not in "".join(traceback.format_exception(caught.value))

    def test_a_harmless_cause_is_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store = GenericStore(StoreSpec("memory://failing", single_writer=True))
        monkeypatch.setattr(store._fs, "cat_file", raising(OSError("disk full")))
        with pytest.raises(StoreError) as caught:
            store.read("a")
        assert repr(caught.value.__cause__) == "OSError('disk full')"


class TestProbe:
    def test_a_store_that_keeps_its_promises_passes_and_holds_nothing(self, store: Store, spec: StoreSpec) -> None:
        probe(store, runtime=SYSTEM, single_writer=spec.single_writer)
        assert store.list("", recursive=True) == []

    def test_what_a_crash_left_is_deleted_once_it_was_known_for_an_hour(self, store: Store, spec: StoreSpec) -> None:
        elapsed = [1000.0]
        runtime = replace(SYSTEM, monotonic_s=lambda: elapsed[0])
        left, _ = new_object(runtime)
        fill(store, "probe/foreign.json", left)
        leftovers = probe(store, runtime=runtime, single_writer=spec.single_writer)
        for elapsed[0] in (1000.0, 1000.0 + LEFT_BEHIND_S - 1):
            leftovers.delete_old()
            assert len(store.list("probe")) == 2
        elapsed[0] += 1
        leftovers.delete_old()
        assert store.list("probe") == ["foreign.json"]
        fill(store, left)
        leftovers.delete_old()
        assert len(store.list("probe")) == 2

    def test_a_process_with_another_clock_leaves_the_probe_of_this_one_alone(
        self, store: Store, spec: StoreSpec
    ) -> None:
        """It opens the WAL between any two requests of this one."""
        for skew in (timedelta(hours=2), timedelta(days=-400), timedelta(days=400)):
            skewed = replace(SYSTEM, now=partial(shifted, skew))

            def beside(skewed: Runtime = skewed) -> None:
                probe(store, runtime=skewed, single_writer=spec.single_writer).delete_old()

            watched = Interrupted(store, beside)
            probe(watched, runtime=SYSTEM, single_writer=spec.single_writer)  # type: ignore[arg-type]
            assert watched.calls == ["create", "create", "read", "list", "delete"], skew
            assert store.list("", recursive=True) == [], skew

    def test_an_untrusted_store_needs_a_single_writer(self, tmp_path: Path) -> None:
        store = GenericStore(StoreSpec(f"file://{tmp_path}"))
        with pytest.raises(ConfigError, match=r"LocalFileSystem.*single_writer=True"):
            probe(store, runtime=SYSTEM, single_writer=False)

    @pytest.mark.parametrize(("package", "trusted"), [("adlfs.spec", True), ("another.lake", False)])
    def test_a_protocol_is_trusted_only_in_the_hands_of_the_package_that_is_known(
        self, package: str, monkeypatch: pytest.MonkeyPatch, *, trusted: bool
    ) -> None:
        """Any package may register itself for abfs:// and look first, write then. No try of one process shows it."""
        kind = type("CloudFileSystem", (MemoryFileSystem,), {"__module__": package, "cachable": False})
        monkeypatch.setattr("fsspec.core.url_to_fs", lambda *_, **__: (kind(), "bucket/wal"))
        store = GenericStore(StoreSpec("abfs://bucket/wal"))
        if trusted:
            assert store.create_doubt == ""
        else:
            with pytest.raises(ConfigError, match=r"CloudFileSystem \(of another.lake\) is not known to create"):
                probe(store, runtime=SYSTEM, single_writer=False)

    def test_one_writer_alone_may_use_a_store_that_overwrites(self, tmp_path: Path) -> None:
        probe(Broken(StoreSpec(str(tmp_path)), "overwrites"), runtime=SYSTEM, single_writer=True)

    @pytest.mark.parametrize(
        ("broken", "message"),
        [
            ("overwrites", r"second create .*single_writer=True"),
            ("forgets", "cannot be found"),
            ("alters", "other bytes"),
            ("hides", "listing"),
        ],
    )
    def test_a_store_that_breaks_one_is_refused(self, tmp_path: Path, broken: str, message: str) -> None:
        store = Broken(StoreSpec(str(tmp_path)), broken)
        with pytest.raises(ConfigError, match=message):
            probe(store, runtime=SYSTEM, single_writer=broken != "overwrites")
        assert not any((tmp_path / "probe").glob("*"))


def shifted(skew: timedelta) -> datetime:
    return datetime.now(UTC) + skew


class Interrupted:
    """A store before each of whose requests something else happens."""

    def __init__(self, store: Store, beside: Callable[[], None]) -> None:
        self._store = store
        self._beside = beside
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in {"create", "read", "list", "delete"}:
            return found

        def call(*args: Any) -> Any:
            self.calls.append(name)
            self._beside()
            return found(*args)

        return call


class Broken(LocalStore):
    def __init__(self, spec: StoreSpec, how: str) -> None:
        super().__init__(spec)
        self.how = how

    def create(self, path: str, data: bytes) -> None:
        if self.how == "overwrites":
            self.delete([path])
        super().create(path, data)

    def read(self, path: str) -> bytes:
        if self.how == "forgets":
            raise ObjectMissing(path)
        return super().read(path) + (b"!" if self.how == "alters" else b"")

    def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        return [] if self.how == "hides" else super().list(prefix, after=after, recursive=recursive)


class TestLocal:
    @pytest.mark.processes
    def test_one_of_eight_processes_wins_each_round(self, tmp_path: Path) -> None:
        rounds, start, wins = 100, FORKS.Event(), FORKS.Queue()
        workers = [FORKS.Process(target=contend_for_names, args=(str(tmp_path), start, rounds, wins)) for _ in range(8)]
        for worker in workers:
            worker.start()
        start.set()
        found = sorted(wins.get(timeout=180) for _ in range(rounds))
        for worker in workers:
            worker.join()
        assert found == list(range(rounds))
        assert wins.empty()
        assert not [*tmp_path.rglob(".*")]

    def test_temporaries_and_empty_folders_never_show(self, tmp_path: Path) -> None:
        store = LocalStore(StoreSpec(str(tmp_path)))
        stream = store.segment("a/b/1")
        assert [*tmp_path.rglob(".wal-sink-*.tmp")]
        assert store.list("", recursive=True) == []
        assert store.list("") == []
        stream.abort()
        assert not [*tmp_path.rglob(".*")]

    def test_file_and_every_new_folder_are_synced(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        synced: list[str] = []
        real = os.fsync

        def spy(descriptor: int) -> None:
            synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
            real(descriptor)

        monkeypatch.setattr(os, "fsync", spy)
        store = LocalStore(StoreSpec(f"{tmp_path}/x/wal"))
        store.create("a/b/1", b"x")
        folders, files = [p for p in synced if not p.endswith(".tmp")], [p for p in synced if p.endswith(".tmp")]
        names = [str(tmp_path), "x", "wal", "a", "b"]
        assert folders == [str(Path(*names[:end])) for end in range(1, 6)]
        assert len(files) == 1
        synced.clear()
        store.create("a/b/2", b"x")
        assert len(synced) == 2, "a known folder costs no more than the file and its name"
        synced.clear()
        with pytest.raises(ObjectExists):
            store.create("a/b/2", b"y")
        assert str(tmp_path / "x/wal/a/b") in synced, "the name that another process may just have made is durable, too"

    def test_a_failed_sync_of_the_file_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store = LocalStore(StoreSpec(str(tmp_path)))
        monkeypatch.setattr(os, "fsync", raising(OSError(5, "Input/output error")))
        with pytest.raises(StoreError, match=r"cannot write .*/1: Input/output error"):
            store.create("1", b"x")
        assert [*tmp_path.iterdir()] == []

    def test_a_failed_sync_of_the_name_is_an_unknown_outcome(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = LocalStore(StoreSpec(str(tmp_path)))
        monkeypatch.setattr(f"{sync_folder.__module__}.sync_folder", raising(OSError(5, "Input/output error")))
        with pytest.raises(OutcomeUnknownError, match="may be lost in a crash"):
            store.create("1", b"x")

    def test_a_temporary_that_cannot_be_removed_makes_no_failure_of_a_success(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = LocalStore(StoreSpec(str(tmp_path)))
        monkeypatch.setattr(Path, "unlink", raising(OSError(116, "Stale file handle")))
        store.create("a/1", b"x")
        assert store.list("", recursive=True) == ["a/1"]

    def test_a_temporary_that_cannot_be_removed_hides_no_failure(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = LocalStore(StoreSpec(str(tmp_path)))
        monkeypatch.setattr(os, "fsync", raising(OSError(5, "Input/output error")))
        monkeypatch.setattr(Path, "unlink", raising(OSError(30, "Read-only file system")))
        with pytest.raises(StoreError, match=r"cannot write .*/1: Input/output error"):
            store.create("1", b"x")

    def test_a_folder_that_cannot_be_tidied_makes_no_failure_of_a_delete(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = LocalStore(StoreSpec(str(tmp_path)))
        store.create("a/1", b"x")
        with monkeypatch.context() as patched:
            patched.setattr(os, "scandir", raising(OSError(24, "Too many open files")))
            store.delete(["a/1"])
        assert store.list("") == []

    @pytest.mark.parametrize(
        ("code", "step"), [(28, "free space"), (13, "right to write"), (30, "mount it writable"), (24, "open files")]
    )
    def test_an_error_of_the_system_names_path_and_next_step(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, step: str
    ) -> None:
        store = LocalStore(StoreSpec(str(tmp_path)))
        monkeypatch.setattr(os, "write", raising(OSError(code, os.strerror(code))))
        with pytest.raises(StoreError, match=step) as caught:
            store.create("a/1", b"x")
        assert f"{tmp_path}/a/1" in str(caught.value)

    def test_a_file_system_without_hard_links_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "link", raising(OSError(95, "Operation not supported")))
        with pytest.raises(ConfigError, match="hard links"):
            LocalStore(StoreSpec(str(tmp_path))).create("a/1", b"x")
        assert not [*tmp_path.rglob(".*")]

    def test_a_root_that_is_lost_is_not_an_empty_one_and_is_not_made_anew(self, tmp_path: Path) -> None:
        store = LocalStore(StoreSpec(str(tmp_path / "wal")))
        store.begin()
        assert store.list("") == []
        store.create("a/1", b"x")
        (tmp_path / "wal").rename(tmp_path / "elsewhere")

        for ask in (lambda: store.read("a/2"), lambda: store.list("a"), lambda: store.create("a/2", b"x")):
            with pytest.raises(StoreError, match=r"/wal: this folder is gone") as caught:
                ask()
            assert not isinstance(caught.value, ObjectMissing)
        assert [each.name for each in tmp_path.iterdir()] == ["elsewhere"]

        (tmp_path / "elsewhere").rename(tmp_path / "wal")
        store.create("a/2", b"x")
        assert store.list("a") == ["1", "2"]

    def test_another_disk_under_the_root_is_no_empty_root(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = LocalStore(StoreSpec(str(tmp_path)))
        store.begin()
        monkeypatch.setattr(store, "_found_device", lambda: -1)
        with pytest.raises(StoreError, match="it is on another disk now"):
            store.read("a/1")

    def test_a_store_that_begins_again_accepts_a_root_that_is_gone(self, tmp_path: Path) -> None:
        store = LocalStore(StoreSpec(str(tmp_path / "wal")))
        store.begin()
        store.create("1", b"x")
        shutil.rmtree(tmp_path / "wal")
        with pytest.raises(StoreError, match="this folder is gone"):
            store.begin(is_there=True)

        store.begin()
        store.create("2", b"x")
        store.begin(is_there=True)
        assert store.list("") == ["2"]

    def test_a_root_that_does_not_answer_is_neither_there_nor_gone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = LocalStore(StoreSpec(str(tmp_path)))
        store.begin()
        monkeypatch.setattr(Path, "stat", raising(OSError(116, "Stale file handle")))
        with pytest.raises(StoreError, match=r"cannot find .*: Stale file handle") as caught:
            store.read("a/1")
        assert not isinstance(caught.value, ObjectMissing)

    def test_a_file_in_the_way_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(StoreError, match="part of the path is a file"):
            probe(LocalStore(StoreSpec(f"{tmp_path}/file/wal")), runtime=SYSTEM, single_writer=False)

    def test_temporaries_of_a_crash_go_with_their_folder(self, tmp_path: Path) -> None:
        store = LocalStore(StoreSpec(str(tmp_path)))
        fill(store, "batches/1/manifest", "batches/1/release", "batches/1/attempt/segment", "batches/2/manifest")
        for folder in ("batches/1", "batches/1/attempt", "batches/1/other/deep", "batches/2"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / ".wal-sink-0123.tmp").touch()

        store.delete(["batches/1/manifest", "batches/1/attempt/segment"])
        assert (tmp_path / "batches/1/.wal-sink-0123.tmp").exists(), "beside an object it may be a living writer's"
        store.delete(["batches/1/release"])

        assert [path.name for path in (tmp_path / "batches").iterdir()] == ["2"]
        assert (tmp_path / "batches/2/.wal-sink-0123.tmp").exists()

    def test_hidden_files_of_others_stay(self, tmp_path: Path) -> None:
        store = LocalStore(StoreSpec(str(tmp_path)))
        fill(store, "a/1")
        (tmp_path / "a/.nfs0001").touch()
        store.delete(["a/1"])
        assert [path.name for path in (tmp_path / "a").iterdir()] == [".nfs0001"]

    def test_a_create_whose_temporary_was_cleaned_away_is_repeated(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        swept = sweep_before_first_link(monkeypatch)
        LocalStore(StoreSpec(str(tmp_path))).create("a/1", b"x")
        assert (tmp_path / "a/1").read_bytes() == b"x"
        assert [path.name for path in (tmp_path / "a").iterdir()] == ["1"]
        assert len(swept) == 1

    def test_a_segment_whose_temporary_was_cleaned_away_fails(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sweep_before_first_link(monkeypatch)
        stream = LocalStore(StoreSpec(str(tmp_path))).segment("a/1")
        with pytest.raises(StoreError, match="deleted by a cleaner while it was written"):
            stream.commit()

    def test_creating_and_cleaning_the_same_folder_side_by_side(self, tmp_path: Path) -> None:
        store = LocalStore(StoreSpec(str(tmp_path)))

        def churn(number: int) -> None:
            for turn in range(100):
                store.create(f"a/b/{number}-{turn}", b"x")
                store.delete([f"a/b/{number}-{turn}"])

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(churn, range(4)))
        assert store.list("") == []


def sweep_before_first_link(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Do once what a cleaner in another process does, at the worst moment; returns what it removed."""
    swept: list[Path] = []
    real = os.link

    def link(source: Path, target: Path) -> None:
        if not swept:
            swept.append(source)
            source.unlink()
            source.parent.rmdir()
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    return swept


def raising(error: Exception) -> Callable[..., None]:
    def call(*_: object) -> None:
        raise error

    return call


def _in_child(spec: StoreSpec, answer: multiprocessing.Queue[bytes]) -> None:
    try:
        answer.put(open_store(spec).read("a"))
    except ConfigError as error:
        answer.put(str(error).encode())


class TestOpening:
    def test_one_instance_per_spec_and_threads_share_it(self, spec: StoreSpec) -> None:
        copy = pickle.loads(pickle.dumps(spec))  # noqa: S301 - our own bytes
        with ThreadPoolExecutor(8) as pool:
            assert len({id(store) for store in pool.map(open_store, [spec, copy] * 8)}) == 1

    @pytest.mark.processes
    @pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
    def test_a_forked_worker_opens_its_own(self, spec: StoreSpec) -> None:
        open_store(spec).create("a", b"x")
        context = multiprocessing.get_context("fork")
        answer = context.Queue()
        child = context.Process(target=_in_child, args=(spec, answer))
        child.start()
        told = answer.get(timeout=120)
        child.join()
        if spec.scheme == "hdfs":
            assert told.startswith(b"hdfs-native was used in the parent process before the fork")
        else:
            assert told == b"x"

    def test_memory_is_shared_by_url(self) -> None:
        url = f"memory://shared-{next(_numbers)}"
        open_store(StoreSpec(url)).create("a", b"x")
        assert open_store(StoreSpec(f"{url}/", single_writer=True)).read("a") == b"x"
        assert open_store(StoreSpec(f"{url}-other")).list("") == []


@pytest.mark.s3
class TestS3:
    @pytest.fixture
    def s3(self, s3_server: S3Server, s3_url: str) -> Store:
        return open_store(StoreSpec(s3_url, s3_server.storage_options))

    @pytest.mark.parametrize("data", [b"", b"x" * 100])
    def test_a_create_is_one_conditional_put(self, s3: Store, s3_server: S3Server, data: bytes) -> None:
        with s3_server.counting() as requests:
            s3.create("a", data)
        assert [request.split()[0] for request in requests] == ["PUT"]
        with s3_server.counting() as requests, pytest.raises(ObjectExists):
            s3.create("a", b"other")
        assert [request.split()[0] for request in requests] == ["PUT"]

    @pytest.mark.parametrize("size", [1, 15 << 20, 101 << 20])
    def test_a_segment_is_one_put_and_reading_it_one_get(self, s3: Store, s3_server: S3Server, size: int) -> None:
        with s3_server.counting() as requests:
            with s3.segment("s") as stream:
                stream.write(bytes(size))
                stream.commit()
            assert len(s3.read("s")) == size
        assert [request.split()[0] for request in requests] == ["PUT", "GET"]

    def test_each_store_has_the_credentials_it_was_given(
        self, s3_server: S3Server, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All share what they know of S3, and nothing else."""
        (tmp_path / "config").write_text("[profile night]\naws_access_key_id=Owl\naws_secret_access_key=feathers\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        anonymous = {key: value for key, value in s3_server.storage_options.items() if key not in ("key", "secret")}
        given = [{**anonymous, "profile": "night"}, {**anonymous, "key": "Lark", "secret": "wings"}]
        stores: list[Any] = [open_store(StoreSpec(s3_url, options)) for options in given]
        signers = [store._fs.s3._request_signer._credentials.access_key for store in stores]
        assert signers == ["Owl", "Lark"]
        assert stores[0]._fs.session.profile == "night"

    def test_an_absent_object_is_one_get(self, s3: Store, s3_server: S3Server) -> None:
        with s3_server.counting() as requests, pytest.raises(ObjectMissing):
            s3.read("absent")
        assert [request.split()[0] for request in requests] == ["GET"]

    def test_lists_and_deletes_by_the_thousand(self, s3: Store, s3_server: S3Server) -> None:
        prefix = s3.root.partition(s3_server.bucket + "/")[2]
        s3_server.fill(f"{prefix}/n/{number:04d}" for number in range(1001))
        with s3_server.counting() as requests:
            names = s3.list("n")
        assert names == [f"{number:04d}" for number in range(1001)]
        assert len(requests) == 2
        with s3_server.counting() as requests:
            assert s3.list("n", after="0999") == ["1000"]
        assert len(requests) == 1
        with s3_server.counting() as requests:
            s3.delete(f"n/{name}" for name in names)
        assert len(requests) == 2
        assert s3.list("n") == []

    def test_a_probe_is_five_requests(self, s3: Store, s3_server: S3Server) -> None:
        with s3_server.counting() as requests:
            probe(s3, runtime=SYSTEM, single_writer=False)
        assert [request.split()[0] for request in requests] == ["PUT", "PUT", "GET", "GET", "POST"]

    def test_a_missing_bucket_is_a_failure_and_no_missing_object(self, s3_server: S3Server) -> None:
        store = open_store(StoreSpec("s3://no-such-bucket/wal", s3_server.storage_options))
        steps: Iterable[Callable[[], object]] = [
            lambda: store.read("a"),
            lambda: store.list(""),
            lambda: store.create("a", b"x"),
            lambda: store.delete(["a"]),
            lambda: probe(store, runtime=SYSTEM, single_writer=False),
        ]
        for step in steps:
            with (
                s3_server.counting() as requests,
                pytest.raises(StoreError, match="this bucket does not exist") as caught,
            ):
                step()
            assert not isinstance(caught.value, ObjectMissing)
            assert len(requests) == 1

    @pytest.mark.parametrize("page", [{}, {"IsTruncated": False, "Prefix": "another/"}], ids=["nothing", "another's"])
    def test_an_answer_that_is_no_listing_of_the_folder_is_no_empty_folder(
        self, s3: Store, page: dict[str, object], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(s3._fs, "call_s3", lambda *_, **__: page)  # type: ignore[attr-defined]
        with pytest.raises(StoreError, match=r"cannot list s3://.*/n/.*expected a listing"):
            s3.list("n")

    def test_an_answer_without_an_etag_is_no_success(self, s3: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """So botocore parses the page of a proxy with status 200."""
        page = {"ResponseMetadata": {"HTTPStatusCode": 200}}
        monkeypatch.setattr(s3._fs, "call_s3", lambda *_, **__: page)  # type: ignore[attr-defined]
        stream = s3.segment("s")
        stream.write(b"x")
        steps: list[Callable[[], object]] = [
            *(lambda: s3.create("a", b"x"), stream.commit, lambda: s3.delete(["a"])),
            lambda: s3.request("upload_part", "a"),  # type: ignore[attr-defined]
        ]
        for step in steps:
            with pytest.raises(StoreError, match="does not answer like S3") as caught:
                step()
            assert not isinstance(caught.value, ObjectExists)

    @pytest.mark.processes
    def test_an_unreachable_endpoint_fails_soon_and_shows_no_secret(self) -> None:
        options = {"key": "the-access-key", "secret": "the-secret-key", "endpoint_url": "http://user:pass@127.0.0.1:1"}
        store = open_store(StoreSpec("s3://bucket/wal", {**options, "client_kwargs": {"region_name": "us-east-1"}}))
        started = SYSTEM.monotonic_s()
        with pytest.raises(StoreError, match=r"s3://bucket/wal/probe.*endpoint") as caught:
            probe(store, runtime=SYSTEM, single_writer=False)
        assert SYSTEM.monotonic_s() - started < 60
        shown = "".join(traceback.format_exception(caught.value))
        assert not any(secret in shown for secret in ("the-access-key", "the-secret-key", "user:pass"))

    def test_options_that_s3fs_does_not_know_are_named(self) -> None:
        with pytest.raises(ConfigError, match="storage_options"):
            open_store(StoreSpec("s3://bucket", {"no_such_option": "1"}))

    def test_answers_to_a_create(self, s3: Store) -> None:
        expected: dict[tuple[str, int], type[StoreError]] = {
            ("PreconditionFailed", 412): ObjectExists,
            ("412", 412): ObjectExists,
            ("ConditionalRequestConflict", 409): StoreError,
            ("InternalError", 500): StoreError,
            ("AccessDenied", 403): StoreError,
        }
        found: dict[tuple[str, int], type[StoreError]] = {}
        for code, status in expected:
            with answering(s3, code, status), pytest.raises(StoreError, match="s3://") as caught:
                s3.create("a", b"x")
            found[code, status] = type(caught.value)
        assert found == expected


@pytest.mark.processes
@pytest.mark.parametrize(("handler", "is_left"), [("its own", True), ("another", False)])
def test_a_mute_endpoint_is_left_because_no_answer_is_waited_for_before_the_body(
    handler: str, monkeypatch: pytest.MonkeyPatch, *, is_left: bool
) -> None:
    """While botocore's handler stays, aiohttp waits for "100 Continue", and knows no limit there."""
    if handler == "another":
        monkeypatch.setattr("wal_sink.stores.s3.add_expect_header", lambda **_: None)
    ended: list[BaseException] = []

    def create(store: Store) -> None:
        try:
            store.create("a", b"x")
        except BaseException as error:  # noqa: BLE001 - told to the test
            ended.append(error)

    with listening() as mute:
        options = {
            "key": "k",
            "secret": "s" * 8,
            "endpoint_url": f"http://127.0.0.1:{mute.getsockname()[1]}",
            "client_kwargs": {"region_name": "us-east-1"},
            "config_kwargs": {"read_timeout": 0.5, "retries": {"mode": "standard", "total_max_attempts": 1}},
        }
        thread = threading.Thread(target=create, args=[open_store(StoreSpec("s3://mute/wal", options))], daemon=True)
        thread.start()
        thread.join(60 if is_left else 4)
        assert bool(ended) == is_left
    thread.join(60)  # the closed socket ends it
    assert isinstance(ended[0], StoreError)


class answering:  # noqa: N801 - reads as a verb in `with`
    """Let S3 answer every request with an error."""

    def __init__(self, store: Store, code: str, status: int) -> None:
        self.fs = store._fs  # type: ignore[attr-defined]
        self.body = f"<Error><Code>{code}</Code><Message>told so</Message></Error>".encode()
        if code.isdigit():
            self.body = b""
        self.status = status

    def __enter__(self) -> None:
        async def fail(**_: object) -> None:
            code = self.body.partition(b"<Code>")[2].partition(b"</Code>")[0].decode() or str(self.status)
            raise ClientError({"Error": {"Code": code, "Message": "told so"}}, "PutObject")

        self.real = self.fs.s3.put_object
        fail.__name__ = "put_object"
        self.fs.s3.put_object = fail

    def __exit__(self, *_: object) -> None:
        self.fs.s3.put_object = self.real


@pytest.mark.s3
def test_an_object_is_encrypted_as_the_options_say(s3_server: S3Server, s3_url: str) -> None:
    extra = {"s3_additional_kwargs": {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "a-key"}}
    store = open_store(StoreSpec(s3_url, {**s3_server.storage_options, **extra}))
    store.create("a/b", b"x")
    with store.segment("a/c") as stream:
        stream.write(b"y")
        stream.commit()
    assert (store.read("a/b"), store.read("a/c")) == (b"x", b"y")
    prefix = s3_url.partition(f"{s3_server.bucket}/")[2]
    for path in ("a/b", "a/c"):
        found = s3_server.client().head_object(Bucket=s3_server.bucket, Key=f"{prefix}/{path}")
        assert found["ServerSideEncryption"] == "aws:kms"
