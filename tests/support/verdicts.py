"""The ends of 2,000 simulated histories and the answers of every verb, recorded before the rooms of issue 40 move.

    python -m tests.support.verdicts --compare FILE                    # print each difference, and fail if there is one
    python -m tests.support.verdicts --write FILE --why "the reason"   # both sections; one alone: --section verbs

FILE is `tests/support/verdicts.json`; `tests/simulation/test_verdicts.py` compares it. A move changes nothing in it. If
a verdict differs, look at the difference first: `python -m tests.simulation.histories --seed N` plays a history point
by point (`--losses` for one of "losing"), and does so in a checkout of the recorded commit, too. Then:

- A history differs, and no request was added or removed: a fault was repaired, or one was made. Find out which before
  anything else. The reason of a new recording names the histories that were looked at.
- Requests changed on purpose: a fault falls on the n-th request of a process, so those behind it move. One more read of
  the term for each chunk moves 42 of the 2,000, and 19 of them to other rows. So this is a commit apart from every
  move. Look at five of them, then record `--section histories`.
- A verb's JSON was changed on purpose: `--write FILE --section verbs --why "…"`. The other section stays as it is.
- An error or a verb has another name: one line in `RENAMED`, and no new recording.

Requests have no verdict here. `tests/contract/test_requests_of_stores.py` states those of a batch and of a start on
each store, and `docs/budgets.toml` the files that a batch enters.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast
from unittest import mock

import wal_sink.walsink
from tests.house.stores import StoreSpec, open_store
from tests.simulation.histories.counting import without_collector
from tests.simulation.histories.drawing import draw
from tests.simulation.histories.drawing_losses import draw_losing
from tests.simulation.histories.plans import Plan
from tests.simulation.histories.playing import Played, play, small_world
from tests.simulation.histories.segments import ROWS as MOST_ROWS
from tests.support.processes import CHECKOUT
from tests.support.small_run import Place as SmallPlace
from tests.support.vault import Vault, VaultSink
from tests.support.verbs import BATCHES, ROWS, Place

RECORDED = Path(__file__).with_suffix(".json")
RENAMED: Mapping[str, str] = {
    "DivergentReplay": "HistoryError",
    "HistoryGone": "HistoryError",
}
"""Present names of error classes and verbs, by the recorded ones."""
DRAWN: Mapping[str, tuple[int, Callable[[int], Plan]]] = {"drawn": (1600, draw), "losing": (400, draw_losing)}
"""How many histories there are of each kind, and what draws them."""
SAMPLE = 40
"""One history in so many is recorded in full."""
FIELDS = ("rows", "marked", "letters", "sends", "kept", "errors")
"""Each is recorded of a history as a digest, the errors in full."""
Differences = Iterator[tuple[str, str]]  # field or story, text for people


def recorded_in(file: Path = RECORDED) -> dict[str, Any]:
    """Read a recording, with present names."""
    text = re.sub(r"[\w-]+", lambda word: RENAMED.get(word.group(), word.group()), file.read_text("utf-8"))
    return cast("dict[str, Any]", json.loads(text))


def facts_of(played: Played) -> dict[str, str]:
    """Return what a history ended with. A row is named by its batch and its number there, not by its attempt."""
    judge, objects = played.world.judge, played.world.wal.objects
    sinks = judge.sinks.items()
    batches = sorted({int(path.split("/")[1]) for path in objects if path.startswith("batches/")})
    texts = (
        "; ".join(f"{name} {_rows(played, facts.seen)}" for name, facts in sinks),
        "; ".join(f"{name} {sorted(facts.marked)}" for name, facts in sinks),
        "; ".join(f"{name} {_rows(played, facts.dead)}" for name, facts in sinks),
        "; ".join(f"{name} {sorted(facts.seen.items())}" for name, facts in sinks),
        f"batches {batches} above {judge.low_water}; {[(name, facts.first_batch) for name, facts in sinks]}",
        ", ".join(f"{number} {name}" for number, name in judge.errors),
    )
    return dict(zip(FIELDS, texts, strict=True))


def _rows(played: Played, numbers: Iterable[int]) -> str:
    found: dict[tuple[int, int], set[int]] = defaultdict(set)
    for number in numbers:
        attempt = played.world.judge.attempts[number // MOST_ROWS]
        found[attempt.batch_id, attempt.end].add(number - attempt.first)
    return ", ".join(f"batch {batch} to {end}: {sorted(rows)}" for (batch, end), rows in sorted(found.items()))


def play_every(kind: str, step: int = 1) -> Iterator[tuple[int, Played]]:
    """Play the histories of a kind, or one in so many."""
    count, plan_of = DRAWN[kind]
    with small_world(), without_collector():
        yield from ((seed, play(plan_of(seed))) for seed in range(0, count, step))


def record_histories() -> dict[str, Any]:
    """Play every history. One that breaks a law has no verdict, and is an `AssertionError`."""
    found: dict[str, Any] = {kind: {} for kind in DRAWN}
    for kind in DRAWN:
        for seed, played in play_every(kind):
            assert not played.violations, f"{kind} {seed}: {played.violations[0]}"
            facts = facts_of(played)
            found[kind][str(seed)] = facts if seed % SAMPLE == 0 else " ".join(_short(facts).values())
    return found


def _short(facts: Mapping[str, str]) -> dict[str, str]:
    digests = {field: hashlib.sha256(facts[field].encode()).hexdigest()[:5] for field in FIELDS}
    return digests | {"errors": facts["errors"]}


def compare_histories(recorded: Mapping[str, Any], step: int = 1) -> Differences:
    """Play the histories again, or one in so many."""
    for kind in DRAWN:
        for seed, played in play_every(kind, step):
            if played.violations:
                yield "law", f"{kind} {seed}, law: {played.violations[0]}"
            facts, before = facts_of(played), recorded[kind][str(seed)]
            is_full = isinstance(before, dict)
            was: dict[str, str] = (
                before if is_full else dict(zip(FIELDS, before.split(" ", len(FIELDS) - 1), strict=True))
            )
            for field, now in (facts if is_full else _short(facts)).items():
                if was[field] != now:
                    yield field, f"{kind} {seed}, {field}: {was[field]} -> {facts[field]}"


# The verbs.
def _lose_a_segment(place: Place) -> None:
    store = place.store()
    store.delete([path for path in store.list("batches", recursive=True) if path.endswith(".parquet")][1:2])


def _two_phase(place: Place) -> None:
    """Commit two batches of a two-phase sink, hold one back, and stage one that Spark does not complete."""
    wal, checkpoint = (open_store(StoreSpec(where)) for where in (place.wal, place.checkpoint))
    small = SmallPlace(rows=lambda _: [2, 1], wal=wal, checkpoint=checkpoint)  # type: ignore[arg-type] # not in memory
    run, query = small.open({"orders": VaultSink(Vault())}), small.query()
    small.stream(run, 1)
    list(query.batches(run, BATCHES))
    query.start_batch(BATCHES, BATCHES)
    query.stage(run, BATCHES)


STORIES: Mapping[str, tuple[str | Callable[[Place], None], ...]] = {
    "made": (Place.make,),
    "delivered": (Place.make, "drain"),
    "skipped": (Place.make, "skip"),
    "retired": (Place.make, "sinks retire"),
    "renamed": (Place.make, "sinks rename"),
    "caught up": (Place.make, "catch-up"),
    "letters sent again": (Place.make, "letters replay"),
    "letters deleted": (Place.make, "letters delete"),
    "lost segment": (Place.make, _lose_a_segment, "drain"),
    "two-phase": (_two_phase,),
    "nothing": (),
}
"""The steps of a WAL before every verb looks at it. `tests.support.verbs` knows the arguments of a verb."""
_UNSTEADY = re.compile(r"\b(bytes|crc32|at|sizes|slowest|held_by|who)\b")
"""Fields that hold sizes of files, times or processes."""
_CHANCE = re.compile(
    r"(?P<MS>\b1\d{12}\b)|(?P<TIME>\d{4}-\d\d-\d\dT[\d:.]+\+00:00)|(?P<ID>\b[0-9a-f]{32,64}\b|(?<=catch-up-)[0-9a-f]{12})"
)
"""Parts of texts that each run has anew."""


def record_verbs() -> dict[str, dict[str, str]]:
    """Return what each verb answers in each story, by field. The others tell only what is not as in the first one."""
    looks, found = [verb for verb, row in ROWS.items() if not row.writes], dict[str, dict[str, str]]()
    no_session = mock.patch.object(wal_sink.walsink, "current_session", return_value=None)  # as in another process
    for story, steps in STORIES.items():
        with tempfile.TemporaryDirectory() as made, mock.patch.object(sys, "path", [made, *sys.path]), no_session:
            folder, now = Path(made).resolve(), dict[str, str]()
            place = Place(folder, str(folder / "wal"), copy=folder / "copy")
            for step in (*steps, *looks):
                if isinstance(step, str):
                    now.update(_answer(place, step))
                else:
                    step(place)
            sys.modules.pop("verbs_sinks", None)
        first = found.get("made", {})
        found[story] = {key: answer for key, answer in now.items() if first.get(key) != answer}
        failed = tuple(f"{verb} " for verb in ROWS if found[story].get(f"{verb} exit", "0") != "0")
        found[story] |= {key: "(absent)" for key in first if key not in now and not key.startswith(failed)}
    return found


def _answer(place: Place, verb: str) -> Iterator[tuple[str, str]]:
    """Yield the exit code of a verb, and each value of its JSON without times, ids and places."""
    done = place.invoke(*verb.split(), *ROWS[verb].arguments(place), "--json")
    yield f"{verb} exit", str(done.exit_code)
    said = json.loads(done.stdout) if done.stdout.startswith(("{", "[")) else {}
    if verb == "doctor":  # the rest tells of this machine
        said = {one["check"]: one["level"] for one in said.get("findings", ()) if one["check"] != "java"}
    for key, value in _flat(said):
        plain = "..." if value and _UNSTEADY.search(key) else value
        if isinstance(value, float):
            plain = f"{value:.6g}" if verb == "estimate" else "SECONDS"
        text = f"{verb}{key}\n{json.dumps(plain)}".replace(str(place.folder), "FOLDER")
        found, _, answer = _CHANCE.sub(lambda part: str(part.lastgroup), text).partition("\n")
        yield found, answer


def _flat(value: Any, key: str = " ") -> Iterator[tuple[str, Any]]:
    """Yield each value that is no container, and its place. An item of a list is named by its name, if it has one."""
    inner = value if isinstance(value, dict) else dict[Any, Any]()
    if isinstance(value, list):
        inner = {_name_of(one, at): one for at, one in enumerate(value)}
        assert len(inner) == len(value), f"{key}: two of one name"
    if not inner:
        yield key, value
    for name, one in inner.items():
        yield from _flat(one, f"{key}{'' if key == ' ' else '.'}{name}")


def _name_of(item: Any, at: int) -> Any:
    return next((item[key] for key in ("name", "file", "sink") if isinstance(item, dict) and key in item), at)


def compare_verbs(recorded: Mapping[str, Mapping[str, str]]) -> Differences:
    """Tell every story again."""
    for story, now in record_verbs().items():
        before = recorded.get(story, {})
        for key in (key for key in dict.fromkeys([*before, *now]) if before.get(key) != now.get(key)):
            was, is_now = (side.get(key, "(nothing)") for side in (before, now))
            yield story, f"{story}, {key}: {was} -> {is_now}"


SECTIONS: Mapping[str, tuple[Callable[[], Any], Callable[[Any], Differences]]] = {
    "histories": (record_histories, compare_histories),
    "verbs": (record_verbs, compare_verbs),
}


def main(arguments: list[str] | None = None) -> int:
    """Record, or compare and print each difference. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.verdicts")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="fail if anything differs from a recording")
    parser.add_argument("--write", type=Path, metavar="FILE", help="record")
    parser.add_argument("--section", choices=SECTIONS, action="append", help="only this one; the others stay")
    parser.add_argument("--why", help="the reason of a recording, which is kept with it")
    given = parser.parse_args(arguments)
    if (given.compare is None) == (given.write is None) or (given.write and not given.why):
        parser.error("either --compare FILE, or --write FILE --why REASON")
    file, sections = given.compare or given.write, given.section or list(SECTIONS)
    recorded = recorded_in(file) if file.exists() else {}
    if given.write:
        git = ["git", "rev-parse", "HEAD"]
        head = subprocess.run(git, cwd=CHECKOUT, check=True, capture_output=True, text=True).stdout.strip()
        for name in sections:
            recorded[name] = {"commit": head, "why": given.why, "verdicts": SECTIONS[name][0]()}
        file.write_text(json.dumps(recorded, indent=0) + "\n", "utf-8")
        return 0
    found = [each for name in sections for each in SECTIONS[name][1](recorded[name]["verdicts"])]
    sys.stdout.writelines(f"{text}\n" for _, text in found)
    counts = Counter(what for what, _ in found)
    sys.stdout.write(f"{len(found)} verdicts differ {dict(counts)}\n")
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(main())
