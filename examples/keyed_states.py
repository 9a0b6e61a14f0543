# python examples/keyed_states.py [--kills 6] [--rows 400]
"""A state machine for each key, A → B → C → D, in a stateful query → an SQL table, each transition exactly once.

Events of a key arrive out of order and repeatedly, over several micro-batches. The machine makes only legal
transitions, and keeps events that came too early in its state. The query's process is killed repeatedly. The table is
then compared with a batch computation over the same files.

On Spark 4 the machine is a `transformWithStateInPandas`, on Spark 3.5 an `applyInPandasWithState`.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyspark
from pyspark.sql import DataFrame
from support.home import Home
from support.kills import arguments, files_for, live_and_die
from support.proof import assert_same_rows, tell_of_changelogs
from support.session import spark_with_rocksdb

from wal_sink import Delivery, Settings, WalSink
from wal_sink_backends import SqlSink

STATES = "ABCD"
KEY_SPAN_FILES = 6
"""The events of one key are spread over so many files."""
EVENTS_A_KEY = 8
TRANSITIONS = "key long, came_from string, went_to string, file long"
STATE = "reached int, early string"

Transition = tuple[int, str, str, int]
"""Key, state before, state after, and the file that made it legal."""

ROWS_PER_S = 200
"""The target takes so many, in small transactions, so that a kill meets many batches half delivered."""


def main() -> None:
    options = arguments(__doc__, rows=400).parse_args()
    if options.query:
        run_query(Home(Path(options.query)))
        return
    with tempfile.TemporaryDirectory() as folder:
        prove(Home(Path(folder) / "home"), options)


def prove(home: Home, options: argparse.Namespace) -> None:
    """Write the events, run and kill the query, compare the result."""
    home.write("events", events_of(files_for(options.kills), options.rows, random.Random(options.seed)))
    live_and_die(home, options.kills, options.seed)
    found = home.query("SELECT key, came_from, went_to, file FROM transitions")
    number = assert_same_rows(found, transitions_of(home.read("events")), "transitions")
    tell_of_changelogs(home)
    print(f"ok: {number} transitions, each once and after the right file, after {options.kills} kills")


def run_query(home: Home) -> None:
    """Run the query in this process until it has read all files, one file in each micro-batch."""
    spark = spark_with_rocksdb(home)
    reader = spark.readStream.schema("key long, state string, file long").option("maxFilesPerTrigger", 1)
    transitions = machines_of(reader.json(str(home.root / "events")))
    target = Delivery(SqlSink(f"sqlite:///{home.database}", "transitions"), rows_per_s=ROWS_PER_S)
    settings = Settings(chunk_rows=10, max_pending_batches=2)
    with WalSink(target, wal=str(home.wal), checkpoint=str(home.checkpoint), settings=settings) as sink:
        sink.run(transitions.writeStream.outputMode("append").trigger(availableNow=True))
        print(sink.guarantee()["default"])
    spark.stop()


# The machine.


def advance(reached: int, early: str, arrived: Iterable[str]) -> tuple[int, str]:
    """The number of states reached, and the events that are too early, after the arrival of more events."""
    waiting = set(early) | set(arrived)
    while reached < len(STATES) and STATES[reached] in waiting:
        reached += 1
    return reached, "".join(sorted(waiting & set(STATES[reached:])))


def transitions_in(
    key: int, parts: Iterable[pd.DataFrame], stored: tuple[int, str] | None
) -> tuple[pd.DataFrame, tuple[int, str]]:
    """The rows that the machine emits for the events of a key in one batch, and its state after them.

    A batch may have two files: if Spark is killed after it wrote down which file comes next and before it wrote down
    the batch, the batch gets that file and one more.
    """
    names = ["start", *STATES]
    state, rows = stored or (0, ""), []
    for file, events in pd.concat(list(parts)).groupby("file"):
        before = state[0]
        state = advance(*state, events["state"])
        rows += [(key, names[number], names[number + 1], file) for number in range(before, state[0])]
    return pd.DataFrame(rows, columns=["key", "came_from", "went_to", "file"]), state


if pyspark.__version__ >= "4":
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    class Machine(StatefulProcessor):
        """The machine on Spark 4."""

        def init(self, handle: StatefulProcessorHandle) -> None:
            self._state = handle.getValueState("state", STATE)

        def handleInputRows(  # noqa: N802 - Spark's name
            self,
            key: Any,
            rows: Iterator[Any],
            timerValues: Any,  # noqa: ARG002, N803 - Spark's name
        ) -> Iterator[pd.DataFrame]:
            stored = self._state.get() if self._state.exists() else None
            transitions, state = transitions_in(key[0], rows, stored)
            self._state.update(state)
            yield transitions

        def close(self) -> None:
            """Nothing to free."""


def machine(key: tuple[int], rows: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """The machine on Spark 3.5."""
    transitions, after = transitions_in(key[0], rows, state.get if state.exists else None)
    state.update(after)
    yield transitions


def machines_of(events: DataFrame) -> DataFrame:
    keys = events.groupBy("key")
    if pyspark.__version__ >= "4":
        return keys.transformWithStateInPandas(Machine(), TRANSITIONS, "append", "none")
    return keys.applyInPandasWithState(machine, TRANSITIONS, STATE, "append", "NoTimeout")


# Input and batch computation.


def events_of(files: int, rows: int, chance: random.Random) -> list[list[dict[str, object]]]:
    """Events of many keys: some states are missing, most come several times, and the files are in no order."""
    content: list[list[dict[str, object]]] = [[] for _ in range(files)]
    for key in range(files * rows // EVENTS_A_KEY):
        first = chance.randrange(files)
        for state in STATES:
            times = 0 if chance.random() < 0.05 else chance.randint(1, 3)
            for _ in range(times):
                file = min(first + chance.randrange(KEY_SPAN_FILES), files - 1)
                content[file].append({"key": key, "state": state, "file": file})
    for events in content:
        chance.shuffle(events)
    return content


def transitions_of(files: list[list[Any]]) -> Iterator[Transition]:
    """The batch computation. A state is reached once it and all states before it have arrived."""
    arrived: dict[int, dict[str, int]] = defaultdict(dict)
    for number, events in enumerate(files):
        for event in events:
            arrived[event["key"]].setdefault(event["state"], number)
    for key, first_file in arrived.items():
        before, file = "start", 0
        for state in STATES:
            if state not in first_file:
                break
            file = max(file, first_file[state])
            yield key, before, state, file
            before = state


if __name__ == "__main__":
    main()
