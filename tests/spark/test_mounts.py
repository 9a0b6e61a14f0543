"""Folders whose file system remembers absent files are told by the mount table: made-up tables, for the most part."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.house.stores import LocalStore, StoreSpec, open_store, probe
from tests.house.support import SYSTEM
from wal_sink.errors import ConfigError
from wal_sink.spark.cluster import _CreateThere
from wal_sink.stores.local import MOUNTS, doubt_of, mount_of

TABLE = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
40 27 0:40 / /mnt/nfs rw,relatime shared:9 master:3 - nfs4 nas:/export rw,vers=4.2,rsize=1048576,hard,addr=10.0.0.1
41 27 0:41 / /mnt/old rw,relatime - nfs nas:/old rw,vers=3,lookupcache=positive
42 27 0:42 / /mnt/fresh rw,relatime - nfs4 nas:/fresh rw,vers=4.2,lookupcache=none
43 27 0:43 / /mnt/noac rw,relatime,noac - nfs nas:/noac rw,sync
44 27 0:44 / /mnt/share rw,relatime - cifs //nas/share rw,vers=3.1.1,cache=none,actimeo=0
45 27 0:45 / /mnt/smb rw,relatime - smb3 //nas/smb rw
46 27 0:46 / /mnt/ssh rw,nosuid - fuse.sshfs me@host:/x rw,user_id=0
47 27 0:47 / /mnt/disk rw - fuseblk /dev/sdb1 rw,blksize=4096
48 27 0:48 / /mnt/merged rw - fuse.mergerfs a:b rw
49 27 0:49 / /mnt/dbfs rw - fuse dbfs rw
50 27 0:50 / /mnt/with\040blank\134and\011tab rw - nfs4 nas:/b rw
51 27 0:40 /wal /srv/wal rw,relatime shared:9 - nfs4 nas:/export rw,vers=4.2
52 40 254:1 /data /mnt/nfs/local rw - ext4 /dev/vdb rw
53 27 0:53 / /mnt/twice rw - ext4 /dev/vdc rw
54 53 0:54 / /mnt/twice rw - nfs4 nas:/twice rw
55 27 0:55 / /mnt/auto rw - autofs /etc/auto.misc rw,fd=7
57 27 0:57 / /mnt/nocto rw - nfs4 nas:/n rw,nocto,lookupcache=none
56 27 0:56 / /mnt/gr\303\274n rw - nfs4 nas:/g rw
"""
REMEMBERS = "remembers for up to a minute that a file is absent"


def doubt(path: str, *, table: str = TABLE) -> str:
    return doubt_of(path, table=lambda: table, system="linux")


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/mnt/nfs/wal", f"/mnt/nfs/wal lies on nfs4 (mounted at /mnt/nfs): its client {REMEMBERS}"),
        ("/mnt/nfs", REMEMBERS),
        ("/mnt/old/a/b", "Mount it with lookupcache=none (or noac)"),
        ("/mnt/with blank\\and\ttab/wal", REMEMBERS),
        ("/mnt/grün/wal", REMEMBERS),
        ("/srv/wal/orders", "mounted at /srv/wal"),
        ("/mnt/twice/wal", "nfs4"),
        ("/mnt/nocto/wal", "and without nocto"),
        ("/mnt/share/wal", "actimeo=0 and cache=none do not"),
        ("/mnt/smb/wal", "use NFS, a local disk or an object store"),
        ("/mnt/ssh/wal", "fuse.sshfs"),
        ("/mnt/dbfs/wal", "it is not known for how long it remembers"),
        ("/mnt/auto/wal", "Mount it before the start"),
    ],
)
def test_absence_is_remembered(path: str, found: str) -> None:
    assert found in doubt(path)


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/mnt/nfs")
    assert REMEMBERS in doubt(str(tmp_path / "link/wal"))


@pytest.mark.parametrize(
    "table", ["", "what is this\n", "27 1 254:0 / /other rw - ext4 x rw\n", "1 2 3:4 / / rw - x\n"]
)
def test_a_table_that_does_not_tell_is_a_doubt(table: str) -> None:
    assert "/srv/wals may lie on a network file system" in doubt("/srv/wals", table=table)


def test_a_table_that_cannot_be_read_is_a_doubt() -> None:
    def forbidden() -> str:
        raise PermissionError("no")

    assert "PermissionError" in doubt_of("/srv/wals", table=forbidden, system="linux")


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's own table")
def test_the_table_of_this_machine_is_read() -> None:
    assert mount_of("/proc/self", MOUNTS.read_text()).kind == "proc"


def on_nfs(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """From now on the folder lies on NFS, as far as the mount table tells."""
    table = f"{MOUNTS.read_text()}99 27 0:99 / {folder} rw - nfs4 nas:/x rw\n"
    monkeypatch.setitem(doubt_of.__kwdefaults__ or {}, "table", lambda: table)


def test_a_wal_there_is_refused_unless_one_writer_is_promised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = open_store(StoreSpec(str(tmp_path / "wal")))
    probe(store, runtime=SYSTEM, single_writer=False)
    on_nfs(monkeypatch, tmp_path)
    with pytest.raises(ConfigError, match=f"cannot hold a WAL that several processes may write.*{REMEMBERS}"):
        probe(store, runtime=SYSTEM, single_writer=False)
    probe(store, runtime=SYSTEM, single_writer=True)
    assert not [*(tmp_path / "wal").rglob("*.json")]


def test_an_executor_that_has_it_mounted_so_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spec = StoreSpec(str(tmp_path / "wal"))
    assert _CreateThere(spec)(("probe/1.json", b"{}")).problem == ""
    on_nfs(monkeypatch, tmp_path)
    assert REMEMBERS in _CreateThere(spec)(("probe/2.json", b"{}")).problem
    promised = StoreSpec(spec.url, single_writer=True)
    assert _CreateThere(promised)(("probe/3.json", b"{}")).problem == ""


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/srv/here/wal",
        "/mnt/nfsother/wal",
        "/mnt",
        "/mnt/fresh/wal",
        "/mnt/noac/wal",
        "/mnt/disk/wal",
        "/mnt/merged/wal",
        "/mnt/nfs/local/wal",
    ],
)
def test_absence_is_seen_at_once(path: str) -> None:
    assert doubt(path) == ""


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_elsewhere_nothing_tells(system: str) -> None:
    assert doubt_of("/mnt/nfs/wal", table=lambda: TABLE, system=system) == ""


def test_reading_is_not_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A commit in a checkpoint shows later. A process that only reads decides nothing."""
    store = LocalStore(StoreSpec(str(tmp_path)))
    store.create("commits/0", b"v1")
    on_nfs(monkeypatch, tmp_path)
    assert store.create_doubt != ""
    assert store.read("commits/0") == b"v1"
    assert store.list("commits") == ["0"]
