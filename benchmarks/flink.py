"""Flink's `GenericWriteAheadSink`, on the jars of `apache-flink-libraries`. One JVM runs all its jobs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import threading
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.measure import Contestant

PEERS = Path(__file__).resolve().parent / "peers"
LIMIT_S = 240.0
"""The time limit of one job."""
MEMORY = "-Xmx3g"
_OPENS = tuple(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("lang", "time", "util"))


def flink_jars() -> Path | None:
    """The folder of Flink's jars; None if they or a Java compiler are missing."""
    found = importlib.util.find_spec("pyflink")
    folders = found.submodule_search_locations if found is not None else None
    jars = Path(folders[0]) / "lib" if folders else None
    compiler = shutil.which(_java("javac"))
    return jars if jars is not None and compiler and list(jars.glob("flink-dist-*.jar")) else None


def _java(program: str) -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / program) if home else program


@dataclass(slots=True)
class Flink:
    """A JVM that runs one job after another. It ends with the `with` block."""

    jars: Path
    scratch: Path
    _process: subprocess.Popen[str] | None = field(default=None, init=False)

    def contestant(self, name: str, *, target: str, log: str, rows: int) -> Contestant:
        """A contestant for `target` (null or csv) and `log` (file, memory or none). It measures rows per second, from
        the first row to the last.
        """
        return Contestant(name, partial(self._rate, target, log, rows))

    def warm_up(self, rows: int) -> None:
        """Run small jobs, so that the JVM compiles the code in advance."""
        for log in ("none", "memory", "file"):
            folder = self.scratch / "flink-warm-up" / log
            self._rate("csv", log, rows // (20 if log == "file" else 1), folder)
            shutil.rmtree(folder, ignore_errors=True)

    def __enter__(self) -> Self:
        classes = self.scratch / "classes"
        classes.mkdir(parents=True, exist_ok=True)
        class_path = os.pathsep.join([str(classes), str(PEERS), str(self.jars / "*")])
        sources = sorted(str(file) for file in PEERS.glob("*.java"))
        subprocess.run([_java("javac"), "-nowarn", "-d", str(classes), "-cp", class_path, *sources], check=True)  # noqa: S603
        with (self.scratch / "flink.log").open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - ended in __exit__
                [_java("java"), MEMORY, *_OPENS, "-cp", class_path, "WalJob"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def _rate(self, target: str, log: str, rows: int, place: Path) -> float:
        answer = self._ask(f"rows={rows} target={target} log={log} folder={place}")
        word, _, seconds = answer.partition(" ")
        if word != "seconds":
            said = (self.scratch / "flink.log").read_text(errors="replace")[-2000:]
            raise RuntimeError(f"Flink's job ended without an answer, or took longer than {LIMIT_S:g} s: {said}")
        return rows / float(seconds)

    def _ask(self, line: str) -> str:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise RuntimeError("Flink is not running: use it in a `with` block")
        timer = threading.Timer(LIMIT_S, process.kill)
        timer.start()
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            return process.stdout.readline()
        except BrokenPipeError:
            return ""
        finally:
            timer.cancel()
