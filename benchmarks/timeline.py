"""Timeline of a contest's query, for our side and Spark's own: `python -m benchmarks.timeline csv`.

Runs both a few times and prints the last run of each: Spark's jobs with their tasks, from its event log, and the
objects of WAL and checkpoint, by the times of their files. Times are milliseconds since the query's first file.
Progress records are counted, not listed. Of a log on S3 (`objects-table`), only jobs, tasks and checkpoint are shown.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.backends import Backends
from benchmarks.contests import Sides, contests
from benchmarks.lakes import LakeContests
from benchmarks.measure import Contest
from benchmarks.object_stores.contestants import ObjectContests
from benchmarks.object_stores.store import ObjectStore
from benchmarks.ours import Ours
from benchmarks.session import Session
from benchmarks.sizes import SIZES
from benchmarks.spark_rivals import SparkRivals
from benchmarks.workloads import write_workloads

CONTESTS = (
    "null",
    "csv",
    "sql",
    "postgresql-path",
    "small",
    "objects-table",
    "delta",
    "delta-small",
    "iceberg",
    "iceberg-small",
)


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of a query: its start and end in milliseconds of the time of day, and the folder of its files."""

    name: str
    began_ms: float
    ended_ms: float
    folder: Path


@dataclass(slots=True)
class Job:
    what: str
    began_ms: float
    tasks: list[tuple[float, float]]


def main() -> None:
    """Measure, then print the last run of both sides."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.timeline", description=__doc__)
    parser.add_argument("contest", choices=CONTESTS)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--size", choices=SIZES, default="full")
    options = parser.parse_args()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ran = _measured(options.contest, options.rounds, options.size, scratch, stack)
        jobs = _jobs(scratch / "events")
        for one in ran:
            print(f"\n{one.name}: {one.ended_ms - one.began_ms:.0f} ms")
            _tell(one, jobs)


def _measured(key: str, rounds: int, size: str, scratch: Path, stack: ExitStack) -> list[Ran]:
    """The last run of our side and of Spark's own. Afterwards Spark is stopped, and its event log is complete."""
    session = Session(scratch, scratch / "events")
    stack.callback(session.stop)
    contest = the_contest(key, size, session, scratch, stack)
    ran: dict[str, Ran] = {}
    for number in range(rounds):
        for contestant in contest.contestants:
            folder = scratch / f"{number} {contestant.name}"
            folder.mkdir()
            began_s = time.time()
            value = contestant.measure(folder)
            ran[contestant.name] = Ran(contestant.name, began_s * 1e3, time.time() * 1e3, folder)
            print(f"{contestant.name}: {value:,.0f} {contest.unit}")
    session.stop()
    return list(ran.values())


def the_contest(key: str, size: str, session: Session, scratch: Path, stack: ExitStack) -> Contest:
    """One contest of the benchmarks, ready to be measured. `stack` closes its servers."""
    backends = Backends()
    stack.callback(backends.close)
    store = ObjectStore()
    stack.callback(store.close)
    sides = Sides(
        Ours(session), SparkRivals(session), None, backends, ObjectContests(session, store), LakeContests(session)
    )
    everything = contests(sides, write_workloads(scratch / "work", SIZES[size]), SIZES[size])
    (contest,) = (one for one in everything if one.key == key)
    return contest


def _jobs(events: Path) -> list[Job]:
    """All jobs of an event log."""
    jobs: dict[int, Job] = {}
    of_stage: dict[int, Job] = {}
    for file in events.iterdir():
        for event in map(json.loads, file.read_text().splitlines()):
            if event["Event"] == "SparkListenerJobStart":
                what = (event.get("Properties") or {}).get("spark.job.description", "")
                job = jobs[event["Job ID"]] = Job(" ".join(what.split())[:60], event["Submission Time"], [])
                of_stage.update(dict.fromkeys(event["Stage IDs"], job))
            elif event["Event"] == "SparkListenerTaskEnd" and event["Stage ID"] in of_stage:
                info = event["Task Info"]
                of_stage[event["Stage ID"]].tasks.append((info["Launch Time"], info["Finish Time"]))
    return list(jobs.values())


def _tell(one: Ran, jobs: list[Job]) -> None:
    objects = list(_objects(one.folder))
    zero_ms = min(at_ms for at_ms, _ in objects)
    lines = [(at_ms, what) for at_ms, what in objects if "/progress/" not in what]
    for job in jobs:
        if one.began_ms <= job.began_ms <= one.ended_ms:
            tasks = " ".join(f"{began - zero_ms:.0f}-{ended - zero_ms:.0f}" for began, ended in sorted(job.tasks))
            lines.append((job.began_ms, f"job: {job.what}; tasks {tasks}"))
    for at_ms, what in sorted(lines):
        print(f"{at_ms - zero_ms:8.0f}  {what}")
    print(f"{one.ended_ms - zero_ms:8.0f}  the end")
    for batch, count in sorted(Counter(what.split("/")[-2] for _, what in objects if "/progress/" in what).items()):
        print(f"          {count} records of progress for batch {int(batch)}")


def _objects(folder: Path) -> Iterator[tuple[float, str]]:
    """The write time of each object of the WAL and of each entry of the checkpoint."""
    for entry in folder.glob("checkpoint/[oc]*s/*"):
        if entry.name.isdigit():
            yield entry.stat().st_mtime * 1e3, f"{entry.parent.name}/{entry.name}"
    for file in folder.glob("wal/**/*.json"):
        yield file.stat().st_mtime * 1e3, file.relative_to(folder / "wal").as_posix()


if __name__ == "__main__":
    main()
