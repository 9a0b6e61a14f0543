"""A redacted archive for a bug report: versions, findings, status, structure of the WAL, names of variables.

It holds no row, no offset, no text of a target and no value of a variable. Each text passes the redaction with every
secret that this process knows.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import platform
import re
import sys
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from wal_sink.doctor.report import Report
from wal_sink.doctor.structure import structure
from wal_sink.errors import ConfigError
from wal_sink.inspection import SinkStatus, Status
from wal_sink.redaction import Redactor, mask_url
from wal_sink.runtime.clock import Runtime
from wal_sink.stores.base import Store

_READ_ME = """A report of wal-sink doctor for a bug report. Look at it before you send it.

doctor.json        versions, and everything that was examined
status.json        the state of the WAL and its sinks, without their targets
structure.jsonl    which objects the WAL has, and their fields; values that may be secret are left out
environment.json   names of environment variables, without values
machine.json       operating system and Python

It holds no rows, no offsets, no texts of targets and no values of variables. Addresses are shown without
user, password and query.
"""


_QUOTED = re.compile(r"""(?<!\w)b?(?:'(?:[^'\\]|\\.)*(?:'|\Z)|"(?:[^"\\]|\\.)*(?:"|\Z))""", re.DOTALL)
"""A text as `repr` shows it. The quotation mark of `Spark's` follows a letter, and begins none."""
_MAY_QUOTE = ("wal", "checkpoint")
"""The checks whose messages may quote what they found in a damaged object: offsets, for example."""


def check_free(file: Path) -> None:
    """Refuse a path under which something lies, before anything is examined. Raises `ConfigError`."""
    if os.path.lexists(file):
        raise ConfigError(f"--bundle {file} exists already, and is never overwritten. Give another name, or remove it")


def bundle(
    report: Report, status: Status | None, store: Store | None, environ: Iterable[str], redact: Redactor
) -> bytes:
    """The archive, as the bytes of a `.tar.gz`. About 30 requests, and 10 more for each further sink."""
    entries = [] if store is None else [json.dumps(_redacted(entry, redact)) for entry in structure(store)]
    parts: Mapping[str, object] = {
        "doctor.json": _unquoted(report).plain(),
        "status.json": None if status is None else _of_status(status),
        "environment.json": sorted(environ),
        "machine.json": _machine(),
    }
    texts = {name: f"{json.dumps(_redacted(part, redact), indent=1)}\n" for name, part in parts.items()}
    texts["structure.jsonl"] = "".join(f"{entry}\n" for entry in entries)
    return _packed({"README.txt": _READ_ME, **{name: redact.known(text) for name, text in texts.items()}})


def _unquoted(report: Report) -> Report:
    """The report without the texts that its messages quote from a WAL or a checkpoint."""
    findings = (
        replace(
            one,
            found=_QUOTED.sub("(text left out)", one.found),
            next_step=_QUOTED.sub("(text left out)", one.next_step),
        )
        if one.check.partition(".")[0] in _MAY_QUOTE
        else one
        for one in report.findings
    )
    return replace(report, findings=tuple(findings))


def _redacted(value: Any, redact: Redactor) -> Any:
    """The value with each text redacted, names of fields too."""
    if isinstance(value, Mapping):
        return {redact(str(name)): _redacted(one, redact) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(one, redact) for one in value]
    return value if value is None or isinstance(value, bool | int) else redact(str(value))


def write(file: Path, data: bytes, runtime: Runtime) -> None:
    """Write the archive for this user alone (mode 0600): whole or not at all, and never over another file.

    Raises `ConfigError` if the path is taken, or cannot be written.
    """
    part = file.with_name(f".{file.name}.{runtime.new_id()}.part")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:  # noqa: PTH123 - a descriptor
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        os.link(part, file)
    except FileExistsError:
        check_free(file)
        raise
    except OSError as error:
        raise ConfigError(
            f"--bundle {file} cannot be written: {error.strerror}. Give a path in a folder where this user may write, "
            "on a disk with hard links"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def _of_status(status: Status) -> Mapping[str, Any]:
    addresses = (("wal", status.wal), ("checkpoint", status.checkpoint), ("location", status.location))
    return {
        **{name: mask_url(address) if address else None for name, address in addresses},
        **{name: getattr(status, name) for name in ("wal_id", "query_id", "first_batch", "newest_batch", "low_water")},
        "stager_term": status.stager_term,
        "sinks": [_of_sink(sink) for sink in status.sinks],
    }


def _of_sink(sink: SinkStatus) -> Mapping[str, Any]:
    """The state of a sink. Of its target only the class is shown: a description by a user may hold anything."""
    shown = ("name", "folder", "kind", "state", "delivered_through", "pending_batches", "term", "held_since")
    head = sink.identity.partition("(")[0]
    return {**{name: getattr(sink, name) for name in shown}, "target": head if head.isidentifier() else "(another)"}


def _machine() -> Mapping[str, Any]:
    return {
        "python": sys.version,
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
    }


def _packed(texts: Mapping[str, str]) -> bytes:
    """The texts as files of one folder, without the names of this machine's user and group."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as archive,
    ):
        for name, text in texts.items():
            data = text.encode()
            entry = tarfile.TarInfo(f"wal-sink-bundle/{name}")
            entry.size, entry.mode = len(data), 0o600
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()
