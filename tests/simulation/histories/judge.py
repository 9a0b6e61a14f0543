"""The oracle: it watches everything that reaches the store and the targets, and checks the laws of the design.

It shares only the layout on the store (`docs/FORMAT.md`) with the core, and reads that layout with separate code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Self

import msgspec

from tests.simulation.histories.facts import NOTHING, Attempt, SinkFacts, broken_by_repeats, copied
from tests.simulation.histories.plans import ROLLED, Shape
from tests.simulation.histories.segments import ROWS

LARGEST_CHUNK = 4
"""Most rows of a chunk; see `drawing`."""


class Judge:
    """Watches one history."""

    def __init__(self, batches: Shape, kinds: dict[str, str]) -> None:
        self.batches = batches
        self.sinks = {
            name: SinkFacts(kind.removeprefix(ROLLED), kind.startswith(ROLLED)) for name, kind in kinds.items()
        }
        self.attempts: list[Attempt] = []
        self.completed: set[tuple[int, int]] = set()
        """Batches that Spark completed, with the ends of their offsets, even if the checkpoint forgot them."""
        self.last_evaluated: dict[tuple[int, int], Attempt] = {}
        """The newest attempt of each process at each batch."""
        self.staged: dict[tuple[int, int, int], Attempt] = {}
        """Attempts that have a manifest, by batch, term and number."""
        self.highest: dict[int, tuple[int, int]] = {}
        """Term and number of the highest manifest of each batch."""
        self.released: dict[int, Attempt] = {}
        self.low_water = NOTHING
        self.needed_by: dict[int, tuple[str, ...]] = {}
        """The sinks that were registered when low water reached a batch."""
        self.deletions = 0
        self.violations: list[str] = []
        self.disturbances = 0
        """Number of events that may leave one send in doubt: crashes, failures, takeovers, lost jobs."""
        self.tampered = False
        """Whether the checkpoint was tampered with."""
        self.lost_objects = 0
        """Number of objects that the WAL lost. A process may then raise an error, or still deliver every row once."""
        self.alone = True
        """Whether only one process lives."""
        self.errors: list[tuple[int, str]] = []
        """The errors that ended a process or its query early: its number, the name of the class."""

    def copy(self) -> Self:
        """A judge that knows the same and watches another future."""
        other = type(self).__new__(type(self))
        other.__dict__.update((name, copied(known)) for name, known in vars(self).items())
        return other

    def evaluated(self, process: int, batch_id: int, end: int) -> Attempt:
        """Note that a process evaluates a batch once more."""
        segments = tuple(rows for rows in self.batches[batch_id] if rows)
        attempt = Attempt(len(self.attempts) * ROWS, batch_id, end, segments)
        self.attempts.append(attempt)
        self.last_evaluated[process, batch_id] = attempt
        return attempt

    @property
    def began_amid_a_collection(self) -> bool:
        """Whether a sink was registered while the batch with which it begins was being deleted.

        The process then reports that an object is gone. The next start begins with the batches that are left.
        """
        return any(
            facts.first_batch is not None and facts.floor is not None and facts.first_batch <= facts.floor
            for facts in self.sinks.values()
            if not facts.marked
        )

    def blame(self, law: str) -> None:
        self.violations.append(law)

    # Changes of the store.
    def created(self, process: int, path: str, data: bytes) -> None:
        folder, _, rest = path.partition("/")
        if folder == "batches":
            batch, _, name = rest.partition("/")
            if name.startswith("manifest-"):
                self._manifest(process, int(batch), name)
            elif name == "release.json":
                self._release(int(batch), data)
        elif folder == "sinks":
            self._of_sink(process, rest, data)
        elif folder == "terms":
            self._term(process, rest)
        elif folder == "low-water":
            self._raised(int(rest.removesuffix(".json")))

    def deleting(self, path: str) -> None:
        folder, _, rest = path.partition("/")
        if folder == "batches":
            parts = rest.split("/")
            batch, names = int(parts[0]), self.needed_by
            self.deletions += 1
            if batch > self.low_water:
                self.blame(f"I6: {path} deleted above low water {self.low_water}")
            for name in names.get(batch, tuple(self.sinks)):
                facts = self.sinks[name]
                if facts.first_batch is not None and batch >= facts.first_batch and batch not in facts.marked:
                    self.blame(f"I6: {path} deleted before sink {name!r} marked its batch")
        elif folder == "sinks" and "/markers/" in rest:
            batch = int(rest.rpartition("/")[2].removesuffix(".json"))
            if batch > self.low_water:
                self.blame(f"I6: {path} deleted above low water {self.low_water}")
        elif folder == "terms":
            self.blame(f"{path}: a term was deleted")

    def listed(self, process: int, prefix: str) -> None:
        """Note that a process listed progress. It reads markers next, so it must not send batches marked until now."""
        if prefix.startswith("sinks/") and "/progress" in prefix:
            facts = self.sinks[prefix.split("/")[1]]
            facts.known[process] = set(facts.marked)

    def lost(self, taken: Sequence[str]) -> None:
        """Note that objects vanished which the protocol needs.

        From now on only the rows in the targets are judged. Another release of a batch may be right then. A batch may
        be sent again, and may repeat as much as after a crash.
        """
        self.lost_objects += len(taken)
        self.disturbances += 1

    def _manifest(self, process: int, batch: int, name: str) -> None:
        term, number = (int(part) for part in name.removeprefix("manifest-").removesuffix(".json").split("-"))
        attempt = self.last_evaluated.get((process, batch))
        if attempt is None:  # a request of an earlier process reached the store late
            attempt = [attempt for attempt in self.attempts if attempt.batch_id == batch][-1]
        self.staged[batch, term, number] = attempt
        self.highest[batch] = max(self.highest.get(batch, (0, 0)), (term, number))
        released = None if self.lost_objects else self.released.get(batch)
        if released is not None and self.alone and batch > self.low_water and released.end == attempt.end:
            self.blame(f"a replay of batch {batch} was staged")

    def _release(self, batch: int, data: bytes) -> None:
        if batch <= self.low_water:
            return  # a superseded process made it after the collection: nobody may act on it
        body = msgspec.json.decode(data)["body"]
        name = body["term"], body["attempt"]
        attempt = self.staged.get((batch, *name))
        if attempt is None:
            self.blame(f"I6: the release of batch {batch} names an attempt that was never staged")
            return
        if self.lost_objects:
            self.released[batch] = attempt
            return
        if self.released.setdefault(batch, attempt) is not attempt:
            self.blame(f"I6: batch {batch} was released a second time")
        if self.alone and name != self.highest[batch]:
            self.blame(f"I6: batch {batch} was released as attempt {name}, not the highest, {self.highest[batch]}")

    def _of_sink(self, process: int, rest: str, data: bytes) -> None:
        name, _, what = rest.partition("/")
        facts = self.sinks[name]
        if what == "sink.json":
            begin = int(msgspec.json.decode(data)["body"]["first_batch"])
            facts.first_batch = begin if facts.first_batch is None else min(begin, facts.first_batch)
        elif what.startswith("markers/"):
            batch = int(what.removeprefix("markers/").removesuffix(".json"))
            group = self._covered(facts, batch)
            if self._is_judged_by_rolls(facts) and batch not in facts.marked and facts.rolls.get(group[0]) != batch:
                self.blame(f"sink {name!r}: the marker of batch {batch} stands for {group}, which are no roll")
            for covered in group:
                self._marker(facts, name, covered)
                facts.known.setdefault(process, set()).add(covered)
        elif what.endswith("/roll.json"):
            body = msgspec.json.decode(data)["body"]
            facts.rolls.setdefault(body["first_batch"], body["through"])
        elif what.startswith("dead-letters/"):
            _, folder, file = what.split("/")
            ordinal, start, end = (int(part) for part in file.removesuffix(".parquet").split("-"))
            if (attempt := self.released.get(int(folder))) is not None:
                rows = attempt.rows_from(ordinal, start, end)
                facts.dead.update(dict.fromkeys(rows, rows.start))

    def _covered(self, facts: SinkFacts, batch: int) -> list[int]:
        """The batches of a marker: that of an idempotent sink or of a roll covers earlier ones that have none."""
        if facts.kind != "idempotent" and not facts.is_rolled:
            return [batch]
        begin = max(facts.first_batch or 0, self.low_water + 1)
        return [*(earlier for earlier in range(begin, batch) if earlier not in facts.marked), batch]

    def _marker(self, facts: SinkFacts, name: str, batch: int) -> None:
        facts.marked.add(batch)
        if self.lost_objects:
            return
        attempt = self.released.get(batch)
        if attempt is None:
            self.blame(f"sink {name!r}: batch {batch} was marked and never released")
        elif missing := [row for row in attempt.rows if row not in facts.seen and row not in facts.dead]:
            self.blame(f"I2: sink {name!r}: batch {batch} was marked without rows {missing}")

    def _term(self, process: int, rest: str) -> None:
        role, _, file = rest.partition("/")
        name = role.removeprefix("committer-")
        if name in self.sinks and role != name:
            facts = self.sinks[name]
            facts.term = max(facts.term, int(file.removesuffix(".json")))
            facts.known[process] = set(facts.marked)
            if facts.floor is None:
                facts.floor = self.low_water

    def _raised(self, batch: int) -> None:
        names = tuple(name for name, facts in self.sinks.items() if facts.first_batch is not None)
        for newly in range(self.low_water + 1, batch + 1):
            self.needed_by[newly] = names
        self.low_water = max(self.low_water, batch)

    # Sends to a target.
    def sent(self, process: int, name: str, numbers: list[int], *, batch_id: int, ordinal: int, term: int) -> None:
        """Note that a process calls the target, whether or not the call takes effect."""
        facts = self.sinks[name]
        first = batch_id
        for attempt in self._attempts_in(facts, numbers):
            if attempt.batch_id != batch_id and not facts.is_rolled:
                self.blame(f"sink {name!r}: rows of batch {attempt.batch_id} were sent as batch {batch_id}")
            if (attempt.batch_id, attempt.end) not in self.completed:
                self.blame(f"I1: sink {name!r}: batch {attempt.batch_id} was sent before Spark completed it")
            if self.released.get(attempt.batch_id) is not attempt and not self.lost_objects:
                self.blame(
                    f"I6: sink {name!r}: batch {attempt.batch_id} was sent from an attempt that was not released"
                )
            first = min(first, attempt.batch_id)
        if self._is_judged_by_rolls(facts):
            first = self._sent_roll(facts, name, numbers, first, batch_id)
        # Where terms were lost, a process that lives alone may hold a lower term than processes that are dead.
        if facts.term > term and not (self.alone and self.lost_objects):
            self._sent_late(facts, name, process, numbers, batch_id=batch_id, ordinal=ordinal, term=term)
            return
        if self.lost_objects:
            return
        if batch_id in facts.known.get(process, ()):
            self.blame(f"I3: sink {name!r}: batch {batch_id} was sent although it is marked")
        begin = max(facts.first_batch or 0, self.low_water + 1)
        if not all(self._is_delivered(facts, earlier) for earlier in range(begin, first)):
            self.blame(f"I3: sink {name!r}: batch {first} overtook an earlier one")

    def _attempts_in(self, facts: SinkFacts, numbers: list[int]) -> list[Attempt]:
        """The attempts that these rows come from: one, if the sink gets no rolls."""
        found = [numbers[0], numbers[-1], *(numbers if facts.is_rolled else ())]
        return [self.attempts[number] for number in dict.fromkeys(number // ROWS for number in found)]

    def _is_judged_by_rolls(self, facts: SinkFacts) -> bool:
        """Whether the records of rolls say what is sent together. Where one was lost, its roll may be decided anew."""
        return facts.is_rolled and not self.lost_objects

    def _sent_roll(self, facts: SinkFacts, name: str, numbers: list[int], first: int, last: int) -> int:
        """Check that a sink gets a roll that was decided, as a whole. Return the first batch of the roll."""
        begin = max((begin for begin in facts.rolls if begin <= first), default=first)
        filled = [batch for batch in range(begin, facts.rolls.get(begin, NOTHING) + 1) if any(self.batches[batch])]
        rows = [row for batch in filled if batch in self.released for row in self.released[batch].rows]
        is_whole = numbers == rows or (len(filled) == 1 and set(numbers) <= set(rows))
        if not is_whole or filled[-1] != last:
            self.blame(f"sink {name!r}: rows {numbers} were sent as batch {last}, which are no roll of {facts.rolls}")
        return begin

    def _is_delivered(self, facts: SinkFacts, batch: int) -> bool:
        """Whether the next batch may be sent: this one is marked, or an idempotent sink has every row of it."""
        if batch in facts.marked:
            return True
        released = self.released.get(batch) if facts.kind == "idempotent" else None
        return released is not None and all(row in facts.seen or row in facts.dead for row in released.rows)

    def _sent_late(
        self, facts: SinkFacts, name: str, process: int, numbers: list[int], *, batch_id: int, ordinal: int, term: int
    ) -> None:
        """Check I7: a superseded process sends only the chunk (segment, batch) that it held.

        It may send the rest of its group to an idempotent sink: one chunk of each batch is sent without a check.
        """
        whole = {"segment": (batch_id, ordinal), "two_phase": (batch_id, ordinal)}
        whole |= {"batch": (batch_id, 0), "commit": (batch_id, 0)}
        unit = whole.get(facts.kind, (batch_id, numbers[0]))
        held = facts.late.setdefault((process, term), set())
        held.add(unit)
        facts.late_rows += len(numbers)
        allowed = len({batch for batch, _ in held}) if facts.kind == "idempotent" else 1
        if len(held) > allowed:
            self.blame(f"I7: sink {name!r}: a superseded process sent {sorted(held)}")

    def took_effect(self, name: str, key: str, numbers: list[int]) -> None:
        """Note that the target has the rows now, perhaps again."""
        facts = self.sinks[name]
        if facts.keys.setdefault(key, numbers[0]) != numbers[0]:
            self.blame(f"sink {name!r}: key {key} stands for other rows than before")
        repeated = 0
        for number in numbers:
            times = facts.seen.get(number, 0)
            facts.seen[number] = times + 1
            repeated += times > 0
        if repeated:
            facts.repeated_rows += repeated
            facts.repeated_chunks += 1

    # At the end.
    def judge_end(self, *, finished: bool, ends: Iterable[int | None]) -> None:
        """Judge the end of the history.

        `finished`: whether the last process came to its end. `ends`: the ends of the offsets that the checkpoint has
        now, by batch.
        """
        for name, facts in self.sinks.items():
            if facts.first_batch is not None:
                if mixed := self._mixed(facts):
                    self.blame(f"sink {name!r} has rows of several attempts of batches {mixed}")
                if (broken := broken_by_repeats(facts, self.disturbances, self.batches)) is not None:
                    self.blame(f"sink {name!r}, after {self.disturbances} disturbances: {broken}")
                for batch_id, end in enumerate(ends):
                    self._judge_batch(name, facts, batch_id, end, finished=finished)

    def _mixed(self, facts: SinkFacts) -> list[int]:
        """Batches of which a target has rows of several attempts, and so some rows twice under other numbers.

        There is one exception: the checkpoint forgot the batch, the WAL lost it, and one attempt left no more rows than
        a crash may leave without a trace.
        """
        rows = Counter(row // ROWS for row in facts.seen)
        batches = [self.attempts[number].batch_id for number in rows]
        twice = {batch for batch in batches if batches.count(batch) > 1}
        return sorted(batch for batch in twice if not self._is_in_hand(facts, batch, rows))

    def _is_in_hand(self, facts: SinkFacts, batch: int, rows: Counter[int]) -> bool:
        """Whether all attempts except one left no more rows than were in flight."""
        sizes = sorted(count for number, count in rows.items() if self.attempts[number].batch_id == batch)
        shape = (sum(self.batches[batch]),) if facts.is_rolled else self.batches[batch]
        window = {"segment": max(shape, default=0), "two_phase": max(shape, default=0)}
        window |= {"batch": sum(shape), "commit": sum(shape)}
        return self.tampered and self.lost_objects > 0 and max(sizes[:-1]) <= window.get(facts.kind, LARGEST_CHUNK)

    def _lacking(self, facts: SinkFacts, batch_id: int) -> str:
        """A description of the fault, if a target lacks rows of a batch that it began to get or should have got."""
        begin = max(facts.first_batch or 0, NOTHING if facts.floor is None else facts.floor + 1)
        completed = any(batch == batch_id for batch, _ in self.completed)
        if batch_id < begin or not completed:
            return ""
        have = facts.seen.keys() | facts.dead.keys()
        attempts = [attempt for attempt in self.attempts if attempt.batch_id == batch_id]
        whole = any(have.issuperset(attempt.rows) for attempt in attempts)
        return "" if whole else "is not whole"

    def _judge_batch(self, name: str, facts: SinkFacts, batch_id: int, end: int | None, *, finished: bool) -> None:
        if self.lost_objects and finished and (wrong := self._lacking(facts, batch_id)):
            self.blame(f"sink {name!r}: batch {batch_id} {wrong}, and nobody was told")
        if batch_id not in facts.marked:
            floor = NOTHING if facts.floor is None else facts.floor
            if finished and batch_id > max(floor, (facts.first_batch or 0) - 1):
                self.blame(f"I2: sink {name!r}: batch {batch_id} was never marked")
        elif finished and (attempt := self.released.get(batch_id)) is not None and attempt.end != end:
            self.blame(f"I8: sink {name!r}: batch {batch_id} was delivered, and its other history dropped silently")
