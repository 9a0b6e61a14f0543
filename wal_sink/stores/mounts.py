"""Finds out which file system holds a local folder: some remember absent files, and so hide objects of other machines.

A process checks whether a newer process claimed its term by reading a file that is normally absent. An NFS client may
answer this read from memory for up to a minute (`acdirmax`), an SMB client for a second. On Linux,
`/proc/self/mountinfo` lists every mount with its options.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")

_NFS = frozenset({"nfs", "nfs4"})
_SMB = frozenset({"cifs", "smb3", "smbfs"})
_LOCAL_FUSE = frozenset(
    {
        *("fuseblk", "fuse.fuse-overlayfs", "fuse.mergerfs", "fuse.bindfs", "fuse.gocryptfs", "fuse.encfs"),
        *("fuse.ntfs-3g", "fuse.exfat", "fuse.ext4", "fuse.zfs-fuse", "fuse.unionfs"),
    }
)
"""FUSE file systems over a disk of this machine: all processes share one cache."""
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the mount table."""

    point: str
    kind: str
    """File system type, such as `ext4`, `nfs4`, `fuse.sshfs`."""
    options: frozenset[str]
    """Options of the mount and of the file system."""


def doubt_of(
    folder: str,
    *,
    table: Callable[[], str] = MOUNTS.read_text,
    system: str = sys.platform,
) -> str:
    """Reason why a file that another machine creates in `folder` may become visible too late; empty if it is visible at
    once.

    The folder need not exist. On systems other than Linux nothing reports this, and the folder counts as local.
    """
    if system != "linux":
        return ""
    path = os.path.realpath(folder)
    with contextlib.suppress(OSError):  # triggers an automount; a missing path lies on its parent's file system
        os.stat(f"{path}/.")  # noqa: PTH116 - Path drops the dot, which triggers the automount
    try:
        mount = mount_of(path, table())
    except (OSError, ValueError) as error:
        return (
            f"{MOUNTS} cannot be read ({type(error).__name__}: {error}), so {path} may lie on a network file system, "
            "and the client of such a file system may remember for a minute that a file is absent"
        )
    found = _forgets(mount)
    return f"{path} lies on {mount.kind} (mounted at {mount.point}): {found}" if found else ""


def mount_of(path: str, table: str) -> Mount:
    """The mount that holds an absolute path without links: the one with the longest mount point, of equal ones the
    last.

    Raises `ValueError` if the table holds no such mount or is not a `mountinfo` table.
    """
    found = [mount for mount in _mounts(table) if _is_below(path, mount.point)]
    if not found:
        raise ValueError(f"no mount in this table contains {path}")
    return max(enumerate(found), key=lambda one: (len(one[1].point), one[0]))[1]


def _mounts(table: str) -> Iterator[Mount]:
    """Mounts in lines such as `36 35 98:0 /root /point mount-options tags … - kind source options`. A bind mount is
    an ordinary line.
    """
    for line in table.splitlines():
        before, dash, after = line.partition(" - ")
        fields, behind = before.split(" "), after.split(" ")
        if not dash or len(fields) < 6 or len(behind) < 3:
            raise ValueError(f"expected a line of a mount table, found {line!r}")
        options = frozenset(",".join((fields[5], behind[2])).split(","))
        yield Mount(_unescaped(fields[4]), behind[0], options)


def _unescaped(text: str) -> str:
    r"""Text without the octal numbers by which the table writes blanks, tabs, line feeds, backslashes: `\040`."""
    raw = os.fsencode(text).decode("latin-1")
    return os.fsdecode(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), raw).encode("latin-1"))


def _is_below(path: str, point: str) -> bool:
    return path == point or path.startswith(f"{point.rstrip('/')}/")


def _forgets(mount: Mount) -> str:
    """Reason why a client of this mount may remember absent files, with a remedy; empty if it does not."""
    if mount.kind in _NFS:
        # lookupcache=none looks up names anew. Listings are fresh since opening a folder sends a request, unless nocto
        # is set.
        looks_up = "lookupcache=none" in mount.options and "nocto" not in mount.options
        return "" if looks_up or "noac" in mount.options else _OF_NFS
    if mount.kind in _SMB:
        return _OF_SMB
    if mount.kind.partition(".")[0] in {"fuse", "fuseblk"} and mount.kind not in _LOCAL_FUSE:
        return _OF_FUSE
    return _OF_AUTOMOUNT if mount.kind == "autofs" else ""


_OF_NFS = (
    "its client remembers for up to a minute that a file is absent, so a process would not notice a newer one. "
    "Mount it with lookupcache=none (or noac), and without nocto, on every machine"
)
_OF_SMB = (
    "its client remembers for a second that a file is absent, so a process would not notice a newer one. No mount "
    "option changes that (actimeo=0 and cache=none do not): use NFS, a local disk or an object store"
)
_OF_FUSE = (
    "a program serves this file system, and it is not known for how long it remembers that a file is absent (by "
    "default sshfs 20 s, rclone 5 min, gcsfuse 5 s)"
)
_OF_AUTOMOUNT = "the file system that will be mounted there is not known yet. Mount it before the start"
