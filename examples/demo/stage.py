"""The demo's folder, and where log and checkpoint lie: on local disk, or on an S3 server that the demo starts."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from examples.demo.folder import Folder
from examples.demo.job import JOB_VARIABLE, STORAGE_VARIABLE, Job
from examples.demo.s3_server import BUCKET, start_server, storage_options
from examples.demo.s3a import s3a_conf, s3a_environment, s3a_jars
from examples.demo.watch import Watch
from wal_sink import ConfigError

CHUNK_ROWS = 2_000
ANSWER_S = 0.05
TASKS_PER_FILE = 2
_TEMPORARY = "spark/tmp"
_OURS = ".wal-sink-demo"
"""Marks a folder the demo made, and may therefore empty."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Everything a run of the demo has a place for."""

    out: Path
    wal: str
    checkpoint: str
    options: dict[str, Any] = field(default_factory=dict, repr=False)
    spark_conf: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    poll_s: float = 0.03

    @property
    def on_s3(self) -> bool:
        return self.wal.startswith("s3:")

    @property
    def database(self) -> Path:
        return self.out / "flights.db"

    @property
    def plain(self) -> Path:
        return self.out / "plain"

    @property
    def log(self) -> Folder:
        return Folder(self.wal, self.options)

    def watch(self) -> Watch:
        checkpoint_is_local = "://" not in self.checkpoint
        return Watch(self.log, Folder(self.checkpoint, {} if checkpoint_is_local else self.options))

    def driver_environment(self, *, stream: Path, ended: Path, airlines: Path, file_bytes: int) -> dict[str, str]:
        """The environment of a driver: its orders and the keys of its store."""
        job = Job(
            stream=str(stream),
            ended=str(ended),
            airlines=str(airlines),
            wal=self.wal,
            checkpoint=self.checkpoint,
            database=str(self.database),
            plain=str(self.plain),
            scratch=str(self.out / "spark"),
            chunk_rows=CHUNK_ROWS,
            split_bytes=file_bytes // TASKS_PER_FILE + 1,
            answer_s=ANSWER_S,
            spark_conf=self.spark_conf,
        )
        told = {
            "TMPDIR": str(self.out / _TEMPORARY),
            JOB_VARIABLE: msgspec.json.encode(job).decode(),
            STORAGE_VARIABLE: msgspec.json.encode(self.options).decode(),
        }
        return {**self.environment, **told}


def make_folder(out: Path) -> Path:
    """An empty folder for the demo. Only one that the demo itself made is emptied; else `ConfigError`."""
    out = out.absolute()
    if out.exists() and not (out / _OURS).exists() and any(out.iterdir()):
        raise ConfigError(f"{out} holds other things than a demo: name another folder with --out, or empty it")
    if out.exists():
        shutil.rmtree(out)
    try:
        out.mkdir(parents=True)
        (out / _OURS).touch()
        for name in ("logs", "plain", _TEMPORARY):
            (out / name).mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"{out} cannot be made ({error.strerror}): name another folder with --out") from error
    return out


@contextmanager
def prepared(out: Path, *, s3: bool, say: Callable[[str], None]) -> Iterator[Stage]:
    """Local folders, or an S3 server that lives as long as the block."""
    if not s3:
        yield Stage(out, str(out / "wal"), str(out / "checkpoint"))
        return
    server, endpoint = start_server(out / "logs" / "s3-server.log")
    with server:
        say(f"an S3 server (moto's, in memory) answers at {endpoint}")
        yield _on_s3(out, endpoint, say)


def _on_s3(out: Path, endpoint: str, say: Callable[[str], None]) -> Stage:
    jars = s3a_jars(say)
    wal, options = f"s3://{BUCKET}/wal", storage_options(endpoint)
    if jars is None:
        say("Spark's S3 connector cannot be had: the log lies on S3, the CHECKPOINT ON LOCAL DISK")
        return Stage(out, wal, str(out / "checkpoint"), options, poll_s=0.2)
    say("log and checkpoint lie on S3; Spark writes its checkpoint by S3A, wal-sink reads it by s3fs")
    conf, environment = s3a_conf(jars, endpoint), s3a_environment()
    return Stage(out, wal, f"s3a://{BUCKET}/checkpoint", options, conf, environment, poll_s=0.2)
