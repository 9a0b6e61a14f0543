"""The oracle for targets that lose what they acknowledged: each row is there once, or a process reported its loss.

Each loss is an instant. A process that marks a batch must have asked the target after its last send, and a row that was
lost before this question must be there again. A commit that takes effect is such a question. A process that starts or
ends must report the rows of marked batches that were lost until then. No row is lost after the last look of all,
because the last process of a history starts after every loss.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable
from typing import cast

import pyarrow.parquet as pq

from tests.simulation.histories.facts import Attempt, SinkFacts
from tests.simulation.histories.judge import Judge
from tests.simulation.histories.plans import Shape

EMPTY = (-1, 0)
"""The batch and the rows of an empty slot."""
_POSITIONED = ("transactional", "commit")
"""The kinds whose targets store positions."""
_UNSEEN = -1
"""The time of a question that a replaced copy answered: before every loss."""


class LossJudge(Judge):
    """Watches one history in which targets forget, and refuse rows."""

    def __init__(self, batches: Shape, kinds: dict[str, str]) -> None:
        super().__init__(batches, kinds)
        self.now = 0
        """Number of losses so far."""
        self._lost: dict[tuple[str, int], int] = {}
        """The last loss of each row, by sink and row."""
        self._asked: dict[tuple[int, str], dict[int, int]] = {}
        """The times at which a process asked for each slot since its last send, by process and sink."""
        self._letters: Counter[tuple[str, int]] = Counter()
        """Number of dead letters that hold a row, by sink and row."""
        self._held: dict[tuple[str, int], tuple[int, int]] = {}
        """The batch and the rows that a slot holds now, by sink and slot."""
        self.written_again = 0
        """Number of rows that came back after they were lost."""
        self._owing = False
        self._marking = 0

    @property
    def owes_rows(self) -> bool:
        return self._owing

    # Changes of the target.
    def sent(self, process: int, name: str, numbers: list[int], *, batch_id: int, ordinal: int, term: int) -> None:
        self._asked.pop((process, name), None)
        if numbers:  # else the target refused every row
            super().sent(process, name, numbers, batch_id=batch_id, ordinal=ordinal, term=term)

    def took_effect(self, name: str, key: str, numbers: list[int]) -> None:
        if numbers:
            super().took_effect(name, key, numbers)
        self.written_again += sum((name, number) in self._lost for number in numbers)

    def asked(self, process: int, name: str, ordinal: int, *, seen: bool) -> None:
        """Note that a process asks for a slot. If it is not `seen`, a replaced copy answers."""
        self._asked.setdefault((process, name), {})[ordinal] = self.now if seen else _UNSEEN

    def written_unseen(self, name: str, numbers: list[int]) -> None:
        """Note that rows were written to a copy that nobody will read."""
        for number in numbers:
            if number not in self.sinks[name].seen:
                self._lost[name, number] = self.now

    def holds(self, name: str, ordinal: int, held: tuple[int, int]) -> None:
        """Note the batch and the rows that a slot of the target holds from now on."""
        self._held[name, ordinal] = held

    def forgot(self, name: str, numbers: list[int]) -> None:
        """Note that the target no longer has these rows. Its slots have gone back already."""
        facts = self.sinks[name]
        self.now += 1
        for number in numbers:
            facts.seen[number] -= 1
            if not facts.seen[number]:
                del facts.seen[number]
            self._lost[name, number] = self.now
        self._note_debt(name, facts)

    def _note_debt(self, name: str, facts: SinkFacts) -> None:
        """Note whether any slot of the target is behind a marker, even if only by a position without rows."""
        due: dict[int, tuple[int, int]] = {}
        for batch in sorted(facts.marked):
            if (attempt := self.released.get(batch)) is not None:
                # A commit holds whole batches, in one slot.
                slots = attempt.segments if facts.kind == "transactional" else (0,) * any(attempt.segments)
                due.update((ordinal, (batch, rows)) for ordinal, rows in enumerate(slots))
        held = self._held
        self._owing = self._owing or any(held.get((name, slot), EMPTY) < at for slot, at in due.items())

    # Changes of the store.
    def _of_sink(self, process: int, rest: str, data: bytes) -> None:
        name, _, what = rest.partition("/")
        if what.startswith("dead-letters/") and what.endswith(".parquet") and self.sinks[name].kind == "transactional":
            self._refused(name, what, data)
        else:
            self._marking = process
            super()._of_sink(process, rest, data)

    def _refused(self, name: str, what: str, data: bytes) -> None:
        """Note the rows of a rejection. It holds their numbers in the segment. An empty one settles a chunk."""
        _, folder, file = what.split("/")
        ordinal = int(file.partition("-")[0])
        attempt = self.released.get(int(folder))
        if attempt is None:
            self.blame(f"sink {name!r}: {what} was kept of a batch that was never released")
            return
        for row in cast("list[int]", pq.read_table(io.BytesIO(data), columns=["row"]).column(0).to_pylist()):
            number = attempt.rows_from(ordinal, row, row + 1).start
            self._letters[name, number] += 1
            self.sinks[name].dead[number] = number

    def _marker(self, facts: SinkFacts, name: str, batch: int) -> None:
        attempt = self.released.get(batch)
        if facts.kind not in _POSITIONED or attempt is None:
            super()._marker(facts, name, batch)
            return
        facts.marked.add(batch)
        asked = self._asked.get((self._marking, name), {})
        for number in missing(facts, attempt):
            ordinal = _ordinal(attempt, number) if facts.kind == "transactional" else 0
            asked_at, lost_at = asked.get(ordinal), self._lost.get((name, number))
            if lost_at is None:
                self.blame(f"I2: sink {name!r}: batch {batch} was marked without row {number}")
            elif asked_at is None:
                self.blame(f"I2: sink {name!r}: batch {batch} was marked without row {number}, and nobody asked for it")
            elif lost_at <= asked_at:
                self.blame(f"I2: sink {name!r}: batch {batch} was marked without row {number}, which was lost before")
        self._note_debt(name, facts)

    # Looks of a process.
    def looked(self, name: str, *, since: int, through: int) -> None:
        """Note that a process found no loss. It began to ask after loss `since` and knew markers up to `through`."""
        facts = self.sinks[name]
        if facts.kind not in _POSITIONED:
            return
        for batch in sorted(facts.marked):
            attempt = self.released.get(batch)
            rows = missing(facts, attempt) if attempt is not None and batch <= through else []
            if silent := [row for row in rows if self._lost.get((name, row), 0) <= since]:
                self.blame(f"sink {name!r}: a process looked, and was not told that rows {silent} of {batch} are lost")

    # At the end.
    def judge_end(self, *, finished: bool, ends: Iterable[int | None]) -> None:
        super().judge_end(finished=finished, ends=ends)
        for (name, row), letters in self._letters.items():
            if letters > 1:
                self.blame(f"sink {name!r}: row {row} is in {letters} dead letters")
            if row in self.sinks[name].seen:
                self.blame(f"sink {name!r}: row {row} is in the target and among the dead letters")
        for name, facts in self.sinks.items():
            if finished and facts.kind in _POSITIONED:
                self._judge_rows(name, facts)

    def _judge_rows(self, name: str, facts: SinkFacts) -> None:
        for batch in sorted(facts.marked):
            attempt = self.released.get(batch)
            if attempt is not None and (rows := missing(facts, attempt)):
                self.blame(f"I2: sink {name!r}: rows {rows} of batch {batch} are lost, and nobody said so")


def missing(facts: SinkFacts, attempt: Attempt) -> list[int]:
    """Rows that are neither in the target nor among the dead letters."""
    return [row for row in attempt.rows if row not in facts.seen and row not in facts.dead]


def _ordinal(attempt: Attempt, number: int) -> int:
    """The number of the segment that holds a row."""
    left = number - attempt.first
    for ordinal, rows in enumerate(attempt.segments):
        left -= rows
        if left < 0:
            return ordinal
    raise AssertionError(f"row {number} does not belong to attempt {attempt}")
