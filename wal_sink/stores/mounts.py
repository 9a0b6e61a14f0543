"""On what a local folder lies: a file system that remembers absent files hides what another machine creates.

A process looks whether a newer one claimed its term by reading a file that is normally absent. A client of NFS may
answer that from memory for up to a minute (`acdirmax`), and one of SMB for a second. Linux says in
`/proc/self/mountinfo` what is mounted where, and how.
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
SMB_SWITCH = Path("/proc/fs/cifs/LookupCacheEnabled")
"""Linux's client of SMB takes no mount option for it: `noac` is refused, `actimeo` and `cache` mean other caches."""

_NFS = frozenset({"nfs", "nfs4"})
_SMB = frozenset({"cifs", "smb3", "smbfs"})
_LOCAL_FUSE = frozenset(
    {
        *("fuseblk", "fuse.fuse-overlayfs", "fuse.mergerfs", "fuse.bindfs", "fuse.gocryptfs", "fuse.encfs"),
        *("fuse.ntfs-3g", "fuse.exfat", "fuse.ext4", "fuse.zfs-fuse", "fuse.unionfs"),
    }
)
"""FUSE over a disk of this machine: every process sees it through the same cache."""
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the mount table."""

    point: str
    kind: str
    """Such as `ext4`, `nfs4`, `fuse.sshfs`."""
    options: frozenset[str]
    """Those of the mount and of the file system."""


def doubt_of(
    folder: str,
    *,
    table: Callable[[], str] = MOUNTS.read_text,
    smb_switch: Callable[[], str] = SMB_SWITCH.read_text,
    system: str = sys.platform,
) -> str:
    """Why a file that is created in `folder` by another machine may be seen too late; empty if it is seen at once.

    The folder need not exist. Elsewhere than on Linux nothing tells, and the folder is taken for one of this machine.
    """
    if system != "linux":
        return ""
    path = os.path.realpath(folder)
    with contextlib.suppress(OSError):  # an automount is done now; what is not there lies on what its parent lies on
        os.stat(f"{path}/.")  # noqa: PTH116 - Path drops the dot, which makes an automount happen
    try:
        mount = mount_of(path, table())
    except (OSError, ValueError) as error:
        return (
            f"{MOUNTS} cannot be read ({type(error).__name__}: {error}), so it is not known whether {path} lies on a "
            "network file system, whose client may remember for a minute that a file is absent"
        )
    found = _forgets(mount, smb_switch)
    return f"{path} lies on {mount.kind} (mounted at {mount.point}): {found}" if found else ""


def mount_of(path: str, table: str) -> Mount:
    """The mount that an absolute path without links lies on: the longest mount point, of equal ones the last.

    Raises `ValueError` for a table that names none, or that is no `mountinfo`.
    """
    found = [mount for mount in _mounts(table) if _is_below(path, mount.point)]
    if not found:
        raise ValueError(f"nothing of it holds {path}")
    return max(enumerate(found), key=lambda one: (len(one[1].point), one[0]))[1]


def _mounts(table: str) -> Iterator[Mount]:
    """`36 35 98:0 /root /point mount-options tags … - kind source options`; a bind mount is a line like any other."""
    for line in table.splitlines():
        before, dash, after = line.partition(" - ")
        fields, behind = before.split(" "), after.split(" ")
        if not dash or len(fields) < 6 or len(behind) < 3:
            raise ValueError(f"expected a line of a mount table, found {line!r}")
        options = frozenset(",".join((fields[5], behind[2])).split(","))
        yield Mount(_unescaped(fields[4]), behind[0], options)


def _unescaped(text: str) -> str:
    r"""Blanks, tabs, line feeds and backslashes stand there as octal numbers: `\040`."""
    raw = os.fsencode(text).decode("latin-1")
    return os.fsdecode(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), raw).encode("latin-1"))


def _is_below(path: str, point: str) -> bool:
    return path == point or path.startswith(f"{point.rstrip('/')}/")


def _forgets(mount: Mount, smb_switch: Callable[[], str]) -> str:
    """Why absence may be remembered there, and what helps; empty if it is not."""
    if mount.kind in _NFS:
        # lookupcache=none looks up names anew; listings are fresh because opening a folder asks, unless by nocto
        looks_up = "lookupcache=none" in mount.options and "nocto" not in mount.options
        return "" if looks_up or "noac" in mount.options else _OF_NFS
    if mount.kind in _SMB:
        return "" if _is_off(smb_switch) else _OF_SMB
    if mount.kind.partition(".")[0] in {"fuse", "fuseblk"} and mount.kind not in _LOCAL_FUSE:
        return _OF_FUSE
    return _OF_AUTOMOUNT if mount.kind == "autofs" else ""


def _is_off(switch: Callable[[], str]) -> bool:
    try:
        return switch().strip() in {"0", "N", "n"}
    except OSError:
        return False  # it is on unless someone switched it off, and nothing says so


_OF_NFS = (
    "its client remembers for up to a minute that a file is absent, and would not see that a newer process took over. "
    "Mount it with lookupcache=none (or noac), and without nocto, on every machine"
)
_OF_SMB = (
    "its client remembers for a second that a file is absent, and would not see that a newer process took over. No "
    f"mount option changes that (actimeo=0 and cache=none do not): write 0 to {SMB_SWITCH} on every machine"
)
_OF_FUSE = (
    "a program answers for this file system, and it is not known for how long it remembers that a file is absent "
    "(sshfs 20 s, rclone 5 min, gcsfuse 5 s unless told otherwise)"
)
_OF_AUTOMOUNT = "what will be mounted there is not known yet. Mount it before the start"
