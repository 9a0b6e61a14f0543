"""Objects of a WAL that are damaged from outside: flipped bits, every truncation, one object in place of another.

A start on the damaged WAL either fails with an error that names the object, or has the same result as on the undamaged
WAL. Once the bytes are restored, delivery goes on and nothing is lost. Objects that no start reads are counted
separately: their damage has no effect and is not reported.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.chaos.damaged_world import KINDS, STORIES, Ending, Scene, Story, kind_of, scenes_of
from tests.chaos.followed_world import rows_lost_and_repeated
from tests.chaos.scenario import Effort, Outcome, Scenario
from tests.chaos.spoiling import flipped

FLIPS = 10_000
WINDOW_ROWS = 2
"""The rows that a plain sink may get again after the crash that made the scene."""


@dataclass(frozen=True, slots=True)
class Case:
    """An object in a scene, and the bytes that replace it."""

    scene: Scene
    path: str
    damaged: bytes
    what: str


class Repertoire:
    """Every object of every story, with the scenes that contain it."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._scenes: dict[tuple[Story, str], list[Scene]] = {}
        for story in STORIES:
            for scene in scenes_of(story):
                for path in scene.wal:
                    if kind_of(path) in story.kinds:
                        self._scenes.setdefault((story, path), []).append(scene)

    def objects(self, kind: str) -> list[tuple[Story, str]]:
        return [(story, path) for story, path in self._scenes if kind_of(path) == kind]

    def scene(self, story: Story, path: str) -> Scene:
        """Return a scene in which the next start reads the object, if there is one."""
        scenes = self._scenes[story, path]
        return self._chance.choice([scene for scene in scenes if path in scene.reads] or scenes)


def _flips(repertoire: Repertoire, effort: Effort, chance: random.Random) -> Iterator[Case]:
    """Flip random bits, in equal shares for each kind of object."""
    for number in range(effort.times(FLIPS, least=len(KINDS))):
        story, path = chance.choice(repertoire.objects(KINDS[number % len(KINDS)]))
        scene = repertoire.scene(story, path)
        damaged = flipped(scene.wal[path], chance)
        at = next(at for at, (old, new) in enumerate(zip(scene.wal[path], damaged, strict=True)) if old != new)
        yield Case(scene, path, damaged, f"byte {at} is {damaged[at]:#04x}")


def _truncations(repertoire: Repertoire, effort: Effort, chance: random.Random) -> Iterator[Case]:
    """Cut every object to every shorter length, or a sample of these."""
    points = [
        (story, path, length)
        for kind in KINDS
        for story, path in repertoire.objects(kind)
        for length in range(len(repertoire.scene(story, path).wal[path]))
    ]
    for story, path, length in chance.sample(points, effort.times(len(points))):
        scene = repertoire.scene(story, path)
        yield Case(scene, path, scene.wal[path][:length], f"cut to {length} bytes")


def _swaps(repertoire: Repertoire, effort: Effort, chance: random.Random) -> Iterator[Case]:
    """Replace every object by every other one of its kind in the same scene, or a sample of these."""
    cases = [
        Case(scene, path, scene.wal[other], f"holds {other}")
        for kind in KINDS
        for story, path in repertoire.objects(kind)
        for scene in [repertoire.scene(story, path)]
        for other in scene.wal
        if kind_of(other) == kind and other != path
    ]
    yield from chance.sample(cases, effort.times(len(cases)))


Cases = Callable[[Repertoire, Effort, random.Random], Iterator[Case]]


class Damage:
    """The scenario of one way to damage objects."""

    def __init__(self, cases: Cases) -> None:
        self._cases = cases

    def __call__(self, effort: Effort) -> Outcome:
        chance = random.Random(effort.seed)
        endings: Counter[tuple[str, str]] = Counter()
        outcome = Outcome()
        for case in self._cases(Repertoire(chance), effort, chance):
            endings[kind_of(case.path), _judged(case, outcome)] += 1
        outcome.detail = _shown(endings)
        return outcome


def _judged(case: Case, outcome: Outcome) -> str:
    outcome.rounds += 1
    world = case.scene.left.branch(case.scene.left.plan)
    try:
        ending: str = case.scene.start_on(world, case.path, case.damaged)
    except Exception as error:  # noqa: BLE001 - any error is a finding
        ending = "violation"
        story = f"{case.scene.story.sink} sink, {len(world.plan.batches)} batches, {len(case.scene.wal)} objects"
        outcome.violations.append(f"{story}: {case.path}: {case.what}: {type(error).__name__}: {error}")
    lost, repeated = rows_lost_and_repeated(world)
    outcome.lost += lost
    outcome.repeated += repeated
    outcome.allowed += WINDOW_ROWS if case.scene.story.sink == "plain" else 0
    return ending


def _shown(endings: Counter[tuple[str, str]]) -> str:
    return "; ".join(
        f"{ending}: " + ", ".join(f"{endings[kind, ending]} {kind}" for kind in KINDS if endings[kind, ending])
        for ending in [*Ending, "violation"]
        if any(endings[kind, ending] for kind in KINDS)
    )


_LAW = "a start fails and names the object, or has the undamaged result; once restored, delivery goes on"
SCENARIOS: Sequence[Scenario] = (
    Scenario("damaged objects: flipped bits", _LAW, "flipped bit", Damage(_flips)),
    Scenario("damaged objects: truncations", _LAW, "truncation point", Damage(_truncations)),
    Scenario("damaged objects: in each other's place", _LAW, "exchanged object", Damage(_swaps)),
)
