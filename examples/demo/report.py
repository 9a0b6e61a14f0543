"""The demo's messages while it works: bars on a terminal, plain lines everywhere else."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import IO, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from examples.demo.printing import console
from examples.demo.watch import Seen

LINE_EVERY_S = 5.0
_STEPS = ("staged", "completed by Spark", "delivered")


class Reporter:
    """Says what happens on `stream`, with the seconds since the start."""

    def __init__(self, *, batches: int, kills: int, bars: bool, stream: IO[str] | None = None) -> None:
        self._started = time.monotonic()
        self._batches = batches
        self._kills = kills
        self._console: Console = console(stream or sys.stdout)
        self._bars = Progress(
            TextColumn("{task.description:<20}"), BarColumn(), MofNCompleteColumn(), console=self._console,
            disable=not bars, transient=True,
        )  # fmt: skip
        self._has_bars = bars
        self._tasks: list[TaskID] = []
        self._said = ""
        self._merged = 0
        self._next_line_s = 0.0

    def __enter__(self) -> Self:
        totals = [(name, self._batches) for name in _STEPS] + [("drivers killed", self._kills)]
        self._tasks = [self._bars.add_task(name, total=total) for name, total in totals]
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def say(self, words: str) -> None:
        """One line."""
        self._console.print(f"{self.elapsed_s():6.1f} s  {escape(words)}", soft_wrap=True)

    def killed(self, number: int, moment: str, seen: Seen) -> None:
        """A driver is dead, and this is what it left."""
        self._bars.update(self._tasks[-1], completed=number)
        self.say(f"SIGKILL {number} of {self._kills}: {moment}")
        if seen.merged > self._merged:
            self._merged = seen.merged
            self.say("Spark had noted a file, but not yet its batch: the next batch will hold one file more")
            for task in self._tasks[:-1]:
                self._bars.update(task, total=self._batches - self._merged)

    def progress(self, seen: Seen) -> None:
        """How far batches are; a line only now and then, and only if there is something new."""
        counts = [seen.staged + 1, seen.completed + 1, seen.delivered_to_all + 1]
        for task, count in zip(self._tasks, counts, strict=False):
            self._bars.update(task, completed=count)
        words = ", ".join(f"{count} {name}" for count, name in zip(counts, _STEPS, strict=True))
        if self._has_bars or words == self._said or self.elapsed_s() < self._next_line_s:
            return
        self._said, self._next_line_s = words, self.elapsed_s() + LINE_EVERY_S
        self.say(f"batches: {words}; {seen.files} of {self._batches} files taken")
