"""HDFS on its bad days: racing and killed writers, nodes that die, safe mode, quotas, lost answers, wrong servers."""

from __future__ import annotations

import contextlib
import importlib
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.house.stores import (
    GenericStore,
    ObjectExists,
    ObjectMissing,
    Store,
    StoreSpec,
    create_once,
    open_store,
    opening,
    probe,
)
from tests.house.support import SYSTEM
from tests.support.contending import contend_for_names, create_until_killed, write_until_killed
from tests.support.forked import FORKS, ForkedChild
from tests.support.processes import Child
from tests.support.servers.hdfs import SUPERUSER, Hdfs
from tests.support.servers.ports import free_port
from tests.support.servers.tcp_proxy import How, TcpProxy
from tests.support.waiting import PATIENCE_S, wait_until
from wal_sink.errors import ConfigError, StoreError
from wal_sink.stores import hdfs as hdfs_module
from wal_sink.stores.hdfs import HdfsStore
from wal_sink.stores.hdfs_rpc import HdfsRpc

pytest_plugins = ["tests.support.fixtures.servers"]
pytestmark = [pytest.mark.hdfs, pytest.mark.no_cover, pytest.mark.processes]

IMPATIENT = replace(SYSTEM, sleep_s=lambda _: None)
DEAD_SOON = {"dfs.client.failover.max.attempts": "1"}
WAITS_LONG = {"dfs.client.failover.max.attempts": "60"}
"""For a name node whose start takes long on a busy machine."""


@pytest.fixture(params=["hdfs", "webhdfs"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(hdfs: Hdfs) -> str:
    return hdfs.new_folder()


@pytest.fixture
def spec(hdfs: Hdfs, kind: str, folder: str) -> StoreSpec:
    return spec_of(hdfs, kind, folder)


@pytest.fixture
def store(spec: StoreSpec) -> Store:
    return open_store(spec)


@pytest.fixture
def impatient(spec: StoreSpec) -> Store:
    return impatient_store(spec)


def impatient_store(spec: StoreSpec) -> Store:
    """A store that repeats a failed call at once, and so gives up soon."""
    store = opening._new_store(spec)
    assert isinstance(store, HdfsStore)
    store._runtime = IMPATIENT
    return store


@pytest.fixture
def both(hdfs: Hdfs) -> list[StoreSpec]:
    """A folder for each protocol. Slow work on the nodes is done once for the two."""
    return [spec_of(hdfs, kind, hdfs.new_folder()) for kind in ("hdfs", "webhdfs")]


class Waiting:
    """A pause between two calls that does not end before the test says so, however long a command of Hadoop takes."""

    def __init__(self) -> None:
        self.begun, self.over = threading.Event(), threading.Event()

    def __call__(self, seconds: float) -> None:
        self.begun.set()
        assert self.over.wait(5 * PATIENCE_S)
        SYSTEM.sleep_s(seconds)


def waiting_store(spec: StoreSpec) -> tuple[Store, Waiting]:
    store, pause = opening._new_store(spec), Waiting()
    assert isinstance(store, HdfsStore)
    store._runtime = replace(SYSTEM, sleep_s=pause)
    return store, pause


@pytest.fixture
def proxied(hdfs: Hdfs, kind: str, folder: str) -> Iterator[tuple[TcpProxy, Store]]:
    """A store whose name node is behind a proxy."""
    port = hdfs.name_node.port if kind == "hdfs" else hdfs.name_node.http_port
    with TcpProxy(port) as proxy:
        url = f"hdfs://127.0.0.1:{proxy.port}" if kind == "hdfs" else hdfs.webhdfs_url_at(proxy.port)
        yield proxy, opening._new_store(StoreSpec(url + folder))


def spec_of(hdfs: Hdfs, kind: str, folder: str, **options: str) -> StoreSpec:
    return StoreSpec((hdfs.url if kind == "hdfs" else hdfs.webhdfs_url) + folder, options)


def temporaries(hdfs: Hdfs, folder: str) -> list[str]:
    return [name for name in hdfs.files(folder) if name.startswith(".wal-sink/")]


# --- writers that race, and writers that are killed


def test_one_of_eight_processes_wins_each_round(hdfs: Hdfs, folder: str) -> None:
    """Four of them use Hadoop's own protocol and four WebHDFS, so that each meets its own kind and the other."""
    kinds, rounds = ("hdfs", "webhdfs"), 40
    start, wins = FORKS.Event(), FORKS.Queue()
    urls = [spec_of(hdfs, kinds[number % 2], folder).url for number in range(8)]
    workers = [FORKS.Process(target=contend_for_names, args=(url, start, rounds, wins)) for url in urls]
    for worker in workers:
        worker.start()
    start.set()
    found = sorted(wins.get(timeout=120) for _ in range(rounds))
    for worker in workers:
        worker.join(120)
    assert found == list(range(rounds))
    assert wins.empty()
    assert [worker.exitcode for worker in workers] == [0] * 8
    assert temporaries(hdfs, folder) == []


def test_an_object_is_whole_or_absent_whenever_its_writer_is_killed(
    spec: StoreSpec, store: Store, tmp_path: Path
) -> None:
    for life in range(5):
        first = life * 1000
        with ForkedChild(create_until_killed, spec.url, first, log=tmp_path / f"life-{life}") as child:
            child.wait_until(lambda: child.output.count("\n") > 3, "it created objects")
            time.sleep(0.013 * life)
        told = [int(line) for line in child.output.split()]
        names = store.list(f"life-{first}")
        assert {f"{number:06d}" for number in told} <= set(names)
        assert all(store.read(f"life-{first}/{name}") == name.encode() * 1000 for name in names)
        following = f"{int(names[-1]) + 1:06d}"
        whole = b"of the next process"
        try:
            store.create(f"life-{first}/{following}", whole)
        except ObjectExists:  # the last request of the killed writer came after the listing
            whole = following.encode() * 1000
        assert store.read(f"life-{first}/{following}") == whole


def test_a_segment_of_a_killed_writer_is_never_seen_and_its_lease_holds_nothing_up(
    hdfs: Hdfs, spec: StoreSpec, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = f"/{spec.location.partition('/')[2]}"
    with ForkedChild(write_until_killed, spec.url, log=tmp_path / "log") as child:
        child.wait_for_output("written")
    assert store.list("", recursive=True) == []
    assert store.list("") == []
    with pytest.raises(ObjectMissing):
        store.read("s/1.parquet")
    with store.segment("s/1.parquet") as stream:
        stream.write(b"of the next process")
        stream.commit()
    assert store.read("s/1.parquet") == b"of the next process"

    assert len(temporaries(hdfs, folder)) == 1, "its file stays for a day"
    store.create("t/1", b"x")
    store.delete(["t/1"])
    assert len(temporaries(hdfs, folder)) == 1, "it may be a living writer's"
    monkeypatch.setattr(hdfs_module, "_LEFT_BEHIND_MS", -1)
    later = opening._new_store(spec)
    later.create("t/2", b"x")
    later.delete(["t/2"])
    assert temporaries(hdfs, folder) == []
    assert store.list("", recursive=True) == ["s/1.parquet"]


def test_a_segment_is_streamed(hdfs: Hdfs, store: Store, folder: str) -> None:
    """Its bytes are with a data node before `commit`, and not in this process."""
    with store.segment("s/1") as stream:
        for _ in range(10):
            stream.write(bytes(1 << 20))

        def received() -> int:
            files = [file for file in hdfs.data_node.folder.rglob("rbw/blk_*") if file.suffix != ".meta"]
            sizes = 0
            for file in files:
                with contextlib.suppress(FileNotFoundError):  # of another file, which was closed meanwhile
                    sizes += file.stat().st_size
            return sizes

        wait_until(lambda: received() > 0)  # a data node answers before it writes
    assert temporaries(hdfs, folder) == []


# --- nodes that die, and a name node that refuses to write


def test_a_store_goes_on_after_the_name_node_was_restarted(hdfs: Hdfs, both: list[StoreSpec]) -> None:
    stores = [open_store(spec) for spec in both]
    for store in stores:
        store.create("a/1", b"x" * 3000)
    hdfs.restart_name_node()
    for store in stores:
        assert store.read("a/1") == b"x" * 3000
        with pytest.raises(ObjectExists):
            store.create("a/1", b"y")
        store.create("a/2", b"y")
        assert store.list("a") == ["1", "2"]


def test_a_create_waits_for_a_name_node_that_is_restarted(hdfs: Hdfs, both: list[StoreSpec]) -> None:
    """hdfs-native repeats the call itself; over HTTP the store does."""
    native, http = both
    stores = [waiting_store(replace(native, options=WAITS_LONG)), waiting_store(http)]
    for store, _ in stores:
        store.create("a/1", b"x")
    hdfs.name_node.kill()
    with ThreadPoolExecutor(len(stores)) as pool:
        created = [pool.submit(store.create, "a/2", b"y") for store, _ in stores]
        try:
            assert stores[1][1].begun.wait(PATIENCE_S)
            hdfs.start_name_node()
        finally:
            for _, pause in stores:
                pause.over.set()
        for each in created:
            each.result(4 * PATIENCE_S)
    for store, _ in stores:
        assert store.read("a/2") == b"y"


@pytest.mark.processes
def test_a_dead_name_node_proves_nothing_absent(kind: str) -> None:
    url = "hdfs://127.0.0.1:1/wal" if kind == "hdfs" else "webhdfs://127.0.0.1:1/wal"
    store = opening._new_store(StoreSpec(url, DEAD_SOON if kind == "hdfs" else {}))
    assert isinstance(store, HdfsStore)
    store._runtime = IMPATIENT
    steps: list[Callable[[], object]] = [
        lambda: store.read("a"),
        lambda: store.list(""),
        lambda: store.create("a", b"x"),
        lambda: store.delete(["a"]),
        lambda: store.segment("a"),
    ]
    for step in steps:
        with pytest.raises(StoreError, match="check that the name node and the data nodes run") as caught:
            step()
        assert not isinstance(caught.value, ObjectMissing)


@pytest.mark.processes
def test_nothing_waits_longer_than_a_minute_for_a_dead_name_node(kind: str) -> None:
    """hdfs-native waits itself; the pauses of the store are counted and not waited for."""
    url = "hdfs://127.0.0.1:1/wal" if kind == "hdfs" else "webhdfs://127.0.0.1:1/wal"
    store, paused, started = opening._new_store(StoreSpec(url)), list[float](), time.monotonic()
    assert isinstance(store, HdfsStore)
    store._runtime = replace(SYSTEM, sleep_s=paused.append)
    with pytest.raises(StoreError, match="name node"):
        store.read("a")
    assert 10 < time.monotonic() - started + sum(paused) < 60


@pytest.mark.processes
def test_an_unknown_host_is_named(kind: str) -> None:
    scheme = "hdfs" if kind == "hdfs" else "webhdfs"
    options = DEAD_SOON if kind == "hdfs" else {}
    store = opening._new_store(StoreSpec(f"{scheme}://no-such-host.invalid:8020/wal", options))
    with pytest.raises(StoreError, match="correct the host of the name node"):
        store.read("a")


def test_objects_of_a_dead_data_node_are_not_absent_and_come_back_with_it(hdfs: Hdfs, both: list[StoreSpec]) -> None:
    stores = [(open_store(spec), impatient_store(spec)) for spec in both]
    for store, _ in stores:
        store.create("a/1", b"x" * 3000)
    hdfs.data_node.kill()
    try:
        for store, impatient in stores:
            steps: list[Callable[[], object]] = [
                partial(impatient.read, "a/1"),
                partial(impatient.create, "a/2", b"y"),
            ]
            for step in steps:
                with pytest.raises(StoreError, match=r"cannot .*data nodes") as caught:
                    step()
                assert not isinstance(caught.value, ObjectMissing)
            assert store.list("a") == ["1"], "nothing of a failed create shows"
    finally:
        hdfs.data_node.start()
    for store, _ in stores:
        assert store.read("a/1") == b"x" * 3000
        store.create("a/2", b"y")
        assert store.read("a/2") == b"y"


def test_a_name_node_in_safe_mode_is_read_and_named(hdfs: Hdfs, both: list[StoreSpec]) -> None:
    stores = [(open_store(spec), impatient_store(spec)) for spec in both]
    for store, _ in stores:
        store.create("a/1", b"x")
    with hdfs.in_safe_mode():
        for store, impatient in stores:
            assert store.read("a/1") == b"x"
            assert store.list("a") == ["1"]
            with pytest.raises(StoreError, match=r"SafeModeException.*hdfs dfsadmin -safemode leave"):
                impatient.create("a/2", b"y")
    for store, _ in stores:
        store.create("a/2", b"y")


def test_a_create_waits_for_the_end_of_safe_mode(hdfs: Hdfs, spec: StoreSpec) -> None:
    """It pauses for half a minute altogether. The command that ends safe mode may take longer on a busy machine."""
    assert 30 <= sum(hdfs_module._PAUSES_S) < 60
    store, pause = waiting_store(spec)
    with ThreadPoolExecutor(1) as pool:
        try:
            with hdfs.in_safe_mode():
                created = pool.submit(store.create, "a/1", b"y")
                assert pause.begun.wait(PATIENCE_S)
                assert not created.done()
        finally:
            pause.over.set()
        created.result(2 * PATIENCE_S)
    assert store.read("a/1") == b"y"


def test_a_full_quota_is_named_and_leaves_nothing(hdfs: Hdfs, store: Store, folder: str) -> None:
    store.create("a/1", b"x")
    used = 4 + 1  # the root, `.wal-sink`, `a`, its object, and one temporary file
    hdfs.set_quota(folder, names=used)
    with pytest.raises(StoreError, match=r"NSQuotaExceededException.*raise the quota"):
        store.create("b/1", b"y")
    hdfs.set_quota(folder, space=1 << 20)
    with pytest.raises(StoreError, match=r"DSQuotaExceededException.*raise the quota"):
        store.create("b/1", b"y")
    assert store.list("", recursive=True) == ["a/1"]
    assert temporaries(hdfs, folder) == []
    hdfs.set_quota(folder, names=-1, space=-1)
    store.create("b/1", b"y")
    assert store.read("b/1") == b"y"


DENIED = """
import sys
from wal_sink.errors import StoreError
from wal_sink.stores.base import ObjectMissing
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
store = open_store(StoreSpec(sys.argv[1]))
for step in (lambda: store.create("b", b"x"), lambda: store.read("a"), lambda: store.list("")):
    try:
        step()
    except ObjectMissing:
        raise SystemExit("denied is not absent")
    except StoreError as error:
        print(error)
    else:
        raise SystemExit("allowed")
"""


def test_a_user_without_rights_is_told_so(
    hdfs: Hdfs, spec: StoreSpec, store: Store, folder: str, tmp_path: Path
) -> None:
    store.create("a", b"x")
    hdfs.set_permission(folder, "700")
    url = spec.url.replace(f"{SUPERUSER}@", "mallory@")
    environment = {"HADOOP_USER_NAME": "mallory"}
    with Child.python(DENIED, url, log=tmp_path / "log", env=environment, limit_s=120) as child:
        told = child.succeed().splitlines()
    assert len(told) == 3
    assert all("AccessControlException" in line and "HADOOP_USER_NAME" in line for line in told)


# --- lost answers, and servers that behave in another way


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_lost_answer_of_the_rename_makes_no_second_object(
    hdfs: Hdfs, kind: str, folder: str, proxied: tuple[TcpProxy, Store], how: How
) -> None:
    proxy, store = proxied
    data = f'{{"id": "{SYSTEM.new_id()}"}}'.encode()
    proxy.cut(b"op=RENAME" if kind == "webhdfs" else b"rename2", how)
    assert create_once(store, "a/1", data, runtime=SYSTEM)
    assert proxy.cuts == 1
    assert store.read("a/1") == data
    assert create_once(store, "a/1", b"another", runtime=SYSTEM) is False
    assert temporaries(hdfs, folder) == []


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_lost_answer_at_the_commit_of_a_segment_is_resolved(
    kind: str, proxied: tuple[TcpProxy, Store], how: How
) -> None:
    proxy, store = proxied
    store.create("s/0", b"x")
    with store.segment("s/1") as stream:
        stream.write(b"rows" * 1000)
        proxy.cut(b"op=RENAME" if kind == "webhdfs" else b"rename2", how)
        stream.commit()
    assert proxy.cuts == 1
    assert store.read("s/1") == b"rows" * 1000


def test_a_connection_that_falls_silent_holds_up_no_later_call(
    kind: str, proxied: tuple[TcpProxy, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All calls of an hdfs-native client share one connection."""
    proxy, store = proxied
    store.create("a/1", b"x")
    proxy.cut(b"op=LISTSTATUS" if kind == "webhdfs" else b"getListing", "swallow")
    with monkeypatch.context() as patch:
        patch.setattr("wal_sink.stores.hdfs_rpc._LIMIT_S", 1.0)
        patch.setattr("wal_sink.stores.webhdfs._ANSWER_S", 1.0)
        with pytest.raises(StoreError, match=r"cannot list .* check the name node"):
            store.list("a")
    wait_until(lambda: proxy.cuts == 1, "the proxy read the request")
    assert store.list("a") == ["1"]
    assert store.read("a/1") == b"x"


@pytest.mark.parametrize("kind", ["hdfs"])
def test_a_commit_ends_soon_if_the_name_node_stopped(
    hdfs: Hdfs, impatient: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections stay open, so each question whether the file is closed waits for its limit."""
    with impatient.segment("s/1") as stream:
        stream.write(b"rows" * 1000)
        monkeypatch.setattr("wal_sink.stores.hdfs_rpc._LIMIT_S", 0.5)
        hdfs.name_node.child.send(signal.SIGSTOP)
        began_s = time.monotonic()
        try:
            with pytest.raises(StoreError, match=r"cannot write .* check the name node"):
                stream.commit()
            took_s = time.monotonic() - began_s
        finally:
            hdfs.name_node.child.send(signal.SIGCONT)
    assert took_s < 30


def test_the_end_of_a_process_waits_once_for_all_files_that_do_not_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal_sink.stores.hdfs_rpc._AT_EXIT_S", 0.6)
    client, closed = HdfsRpc(lambda: SimpleNamespace(inner=None)), threading.Event()

    def hang() -> None:
        closed.wait(5 * PATIENCE_S)

    for _ in range(100):
        client.close_aside(hang)
    began_s = time.monotonic()
    client._wait_for_closing()
    took_s = time.monotonic() - began_s
    closed.set()
    assert 0.6 <= took_s < 30


def test_a_writer_does_not_take_anothers_object_for_its_own_after_a_lost_answer(
    hdfs: Hdfs, kind: str, folder: str
) -> None:
    """The temporary file is gone, as after a rename, and another writer has the name."""
    store = opening._new_store(spec_of(hdfs, kind, folder))
    assert isinstance(store, HdfsStore)
    store.create("a/1", b"another's")
    with pytest.raises(StoreError, match="another process may have created it"):
        store.name(store._new_temporary(), "a/1")
    assert store.name(store._new_temporary(), "a/2") is False
    assert store.read("a/1") == b"another's"


HTTPFS = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 17\r\n\r\n{"boolean": true}'


def test_a_server_that_ignores_option_none_is_refused(hdfs: Hdfs, folder: str) -> None:
    with TcpProxy(hdfs.name_node.http_port) as proxy:
        store = opening._new_store(StoreSpec(hdfs.webhdfs_url_at(proxy.port) + folder))
        store.create("probe/0", b"x")  # so that the folder is there, and the next 200 is the rename's
        proxy.instead = (b"HTTP/1.1 200", HTTPFS)
        with pytest.raises(ConfigError, match=r"does not rename by Hadoop's option NONE.*HttpFS"):
            probe(store, runtime=SYSTEM, single_writer=False)


def test_a_name_node_that_overwrites_is_refused(impatient: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    client = impatient._client  # type: ignore[attr-defined]
    rename = client.rename

    def overwriting(source: str, target: str) -> None:
        client.delete(target)
        rename(source, target)

    monkeypatch.setattr(client, "rename", overwriting)
    with pytest.raises(ConfigError, match="accepted a second create"):
        probe(impatient, runtime=SYSTEM, single_writer=False)


class _Elsewhere(BaseHTTPRequestHandler):
    """A web server that knows nothing of HDFS."""

    def do_GET(self) -> None:
        self.send_error(404)

    do_PUT = do_DELETE = do_GET  # noqa: N815 - names of http.server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ARG002 - as http.server has it
        return


@pytest.mark.processes
def test_another_web_servers_404_proves_nothing_absent() -> None:
    server = HTTPServer(("127.0.0.1", free_port()), _Elsewhere)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        store = opening._new_store(StoreSpec(f"webhdfs://127.0.0.1:{server.server_port}/wal"))
        for step in (lambda: store.read("a"), lambda: store.list(""), lambda: store.create("a", b"x")):
            with pytest.raises(StoreError, match="those of the name node's web address") as caught:
                step()
            assert not isinstance(caught.value, ObjectMissing)
    finally:
        server.shutdown()
        server.server_close()


def test_a_delete_below_an_object_leaves_the_object(store: Store) -> None:
    store.create("a", b"x")
    store.delete(["a/b/c", "a/b"])
    assert store.read("a") == b"x"


FORKED = """
import os, sys
from wal_sink.stores import hdfs, hdfs_rpc, opening
from wal_sink.stores.spec import StoreSpec
children = []
for number in range(3):
    child = os.fork()
    if not child:
        store = opening.open_store(StoreSpec(sys.argv[1]))
        store.create(f"a/{number}", b"x")
        os._exit(0 if store.read(f"a/{number}") == b"x" else 1)
    children.append(child)
sys.exit(sum(os.waitpid(child, 0)[1] for child in children))
"""


def test_children_of_a_process_that_opened_nothing_work_as_sparks_workers_do(
    spec: StoreSpec, store: Store, tmp_path: Path
) -> None:
    with Child.python(FORKED, spec.url, log=tmp_path / "log", limit_s=120) as child:
        child.succeed()
    assert store.list("a") == ["0", "1", "2"]


# --- what a create costs


def test_a_create_waits_for_the_data_nodes_report_and_no_half_second(hdfs: Hdfs, folder: str) -> None:
    store = open_store(spec_of(hdfs, "hdfs", folder))
    store.create("a/0", b"x")

    def median_of_15(turn: int) -> float:
        times = []
        for number in range(15):
            started = time.perf_counter()
            store.create(f"a/{turn}-{number}", b"x" * 1000)
            times.append(time.perf_counter() - started)
        return sorted(times)[7]

    assert any(median_of_15(turn) < 0.25 for turn in range(10))  # other work may slow some of them down, but not all
    assert set(hdfs.files(folder).values()) == {1, 1000}


def test_a_create_is_right_without_the_short_cut(hdfs: Hdfs, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HdfsRpc, "recover_lease", lambda *_: False)
    store = open_store(spec_of(hdfs, "hdfs", folder))
    store.create("a/1", b"x" * 1000)
    assert store.read("a/1") == b"x" * 1000


ENDS = """
import sys
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
store = open_store(StoreSpec(sys.argv[1]))
for number in range(3):
    store.create(f"life-0/{number:06d}", b"%06d" % number * 1000)
    print(number, flush=True)
"""


def test_a_process_that_created_ends_at_once_and_in_order(spec: StoreSpec, tmp_path: Path) -> None:
    with Child.python(ENDS, spec.url, log=tmp_path / "log", limit_s=120) as child:
        assert child.succeed() == "0\n1\n2\n"


ASKED = {
    "hdfs": {"read": ["open"], "list": ["listStatus"], "create": ["create", "rename"]},
    "webhdfs": {"read": ["getfileinfo", "open", "open"], "list": ["listStatus"], "create": ["create", "rename"]},
}
"""The calls in the name node's audit log. It has those of the data node for a client of WebHDFS too."""
WHILE_CLOSING = {"completeFile", "open", "recoverLease"}
"""Their number depends on how soon the data node reports."""


def test_the_requests_of_a_create_a_read_and_a_listing(hdfs: Hdfs, kind: str, folder: str, store: Store) -> None:
    """The store of an earlier test may close its files now. Requests about another test's folder do not count."""
    elsewhere = re.compile(rf"\w+ (?!{folder}\b)/test-")
    store.create("a/1", b"x")
    until_closed(store)
    asked = {}
    steps: dict[str, Callable[[], object]] = {
        "read": lambda: store.read("a/1"),
        "list": lambda: store.list("a"),
        "create": lambda: store.create("a/2", b"x"),
    }
    for name, step in steps.items():
        with hdfs.counting() as seen:
            step()
            until_closed(store)
        leaving_out = WHILE_CLOSING if name == "create" else set()
        here = [line for line in seen if not elsewhere.match(line)]
        asked[name] = [line.split()[0] for line in here if line.split()[0] not in leaving_out]
    assert asked == ASKED[kind]


def until_closed(store: Store) -> None:
    """Return when hdfs-native's own close has ended, which comes half a second later."""
    assert isinstance(store, HdfsStore)
    closing = store._client._closing if isinstance(store._client, HdfsRpc) else ()
    wait_until(lambda: not closing, "hdfs-native closed its files")


# --- which client a URL gets


def test_another_implementation_stays_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type("WebHDFS", (MemoryFileSystem,), {"__module__": "of.another", "cachable": False})
    monkeypatch.setattr(fsspec, "get_filesystem_class", lambda _: kind)
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda *_, **__: (kind(), "wal"))
    store = opening._new_store(StoreSpec("webhdfs://127.0.0.1:1/wal"))
    assert isinstance(store, GenericStore)
    with pytest.raises(ConfigError, match=r"WebHDFS \(of of.another\) is not known to create atomically"):
        probe(store, runtime=SYSTEM, single_writer=False)


@pytest.mark.parametrize("module", ["wal_sink.stores.hdfs_rpc", "wal_sink.stores.webhdfs"])
def test_a_missing_package_is_named_with_the_line_that_installs_it(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(importlib.sys.modules, module, None)  # type: ignore[attr-defined]
    url = "webhdfs://127.0.0.1:1/wal" if "web" in module else "hdfs://127.0.0.1:1/wal"
    with pytest.raises(ConfigError, match=r"its extra hdfs, or: pip install hdfs-native requests"):
        opening._new_store(StoreSpec(url))


def test_without_hdfs_native_the_address_is_pyarrows_and_the_error_names_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind = type("HadoopFileSystem", (MemoryFileSystem,), {"__module__": "fsspec.implementations.arrow"})
    monkeypatch.setattr(fsspec, "get_filesystem_class", lambda _: kind)

    def without_libhdfs(*_: object, **__: object) -> None:
        raise OSError("Unable to load libhdfs")

    monkeypatch.setattr("fsspec.core.url_to_fs", without_libhdfs)
    with pytest.raises(ConfigError, match=r"libhdfs.*extra hdfs, or: pip install hdfs-native"):
        opening._new_store(StoreSpec("hdfs://127.0.0.1:1/wal"))


def test_a_user_in_an_address_of_hdfs_native_is_refused() -> None:
    with pytest.raises(ConfigError, match="HADOOP_USER_NAME"):
        opening._new_store(StoreSpec("hdfs://me@127.0.0.1:1/wal"))


def test_viewfs_leads_to_the_same_store(hdfs: Hdfs, folder: str) -> None:
    hdfs.make_folder(folder)
    options = {"fs.viewfs.mounttable.cluster.link./data": hdfs.url + folder}
    options["fs.viewfs.mounttable.cluster.linkFallback"] = hdfs.url + folder
    store = open_store(StoreSpec("viewfs://cluster/data/wal", options))
    probe(store, runtime=SYSTEM, single_writer=False)
    store.create("a/1", b"x")
    assert open_store(spec_of(hdfs, "webhdfs", folder)).read("wal/a/1") == b"x"


@pytest.mark.parametrize("where", ["options", "files"])
def test_reads_of_observers_are_refused(
    hdfs: Hdfs, folder: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An observer may be behind: it would not know the term that a newer process claimed."""
    name = "dfs.client.failover.proxy.provider.cluster"
    provider = "org.apache.hadoop.hdfs.server.namenode.ha.ObserverReadProxyProvider"
    options = {name: provider} if where == "options" else {}
    if where == "files":
        setting = f"<property><name>{name}</name><value>{provider}</value></property>"
        (tmp_path / "hdfs-site.xml").write_text(f"<configuration>{setting}</configuration>")
        (tmp_path / "core-site.xml").write_text("<configuration/>")
        monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    store = opening._new_store(spec_of(hdfs, "hdfs", folder, **options))
    with pytest.raises(ConfigError, match="observer name nodes answer reads"):
        probe(store, runtime=SYSTEM, single_writer=False)
    wait_until(lambda: hdfs.files(folder) == {}, "nothing was written")
