"""Every request of a run on a store, spoilt in every way that networks and servers have.

An undisturbed run is recorded. Then its first, second, … last request is spoilt, one in each further run. The run
recovers by itself, or it ends with a clear error and the next start finishes. The target and the server show it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from tests.chaos.faulty_proxy import Answer, Exchange, Request
from tests.chaos.followed_world import FollowedWorld, rows_lost_and_repeated
from tests.chaos.scenario import Effort, Outcome
from tests.simulation.histories.plans import Shape
from tests.simulation.world import dies
from wal_sink.errors import WalSinkError

LAW = "I1 to I8 hold; the run recovers by itself, or ends with a clear error and the next start finishes"
UNIT = "spoilt request"
BATCHES: Shape = ((7, 1), (1,))
"""Two segments of four chunks and one, then one segment of one chunk."""
DIES_AT_SEND = 4
"""The send after which the first process dies. Lost progress would then repeat more rows than a crash and a fault."""
KINDS = ("plain", "idempotent", "transactional")
WINDOW_ROWS = 2
"""The rows of one chunk. Only one segment is in progress at a time."""

Client = Mapping[str, object]
"""Time limits and number of attempts of a client, in the words of botocore's `Config`."""
IMPATIENT: Client = {
    "connect_timeout": 5,
    "read_timeout": 20,
    "retries": {"mode": "standard", "total_max_attempts": 1},
}
"""A client without retries, so that each fault meets the code above the store."""
SOON: Client = {**IMPATIENT, "read_timeout": 1}
PATIENT: Client = {**IMPATIENT, "retries": {"mode": "standard", "total_max_attempts": 4}}

Applies = Callable[[Request, Answer], bool]
Act = Callable[[Any, random.Random], None]
"""It gets the exchange of a proxy: for HTTP an `Exchange`."""
Change = Callable[[bytes, random.Random], bytes]
End = Callable[[Exchange], None]


class Proxy(Protocol):
    """The device between a store's client and its server. `FaultyProxy` is one."""

    seen: list[tuple[Request, Answer]]
    hit: Request | None
    problems: list[BaseException]

    def arm(self, fault: Callable[[Any], None] = ..., *, at: int = 0) -> None: ...
    def settle(self) -> int: ...


class Place(Protocol):
    """A server behind a proxy, with one client at a time. Worlds follow each other on it."""

    @property
    def proxy(self) -> Proxy: ...
    @property
    def steady(self) -> bool:
        """Whether equal runs send equal requests. Otherwise a run may end before the request that was to be spoilt."""
        ...

    def connect(self, client: Client) -> None:
        """Use another client from now on."""

    def world(self, kind: str, batches: Shape) -> FollowedWorld:
        """Make a new world, with an empty WAL. The proxy spoils nothing."""
        ...


def to_any(_: Request, __: Answer) -> bool:
    return True


def to_writes(request: Request, _: Answer) -> bool:
    return request.method in {"PUT", "POST"}


def to_answers_with_body(_: Request, answer: Answer) -> bool:
    return bool(answer.body)


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to spoil a request."""

    name: str
    act: Act
    applies: Applies = to_any
    client: Client = field(default_factory=lambda: IMPATIENT)
    kinds: Sequence[str] = KINDS
    late: bool = False
    """True if some effect of the fault comes after the run has gone on."""


@dataclass(frozen=True, slots=True)
class Target:
    """One request of one run, to be spoilt."""

    kind: str
    taken_over: bool
    """True if a first run died with a chunk in flight, and the spoilt run takes over."""
    at: int
    what: str


def leave(end: End, *, done: bool = False) -> Act:
    """End the exchange in this way, without the effect of the request or after it."""

    def act(exchange: Exchange, _: random.Random) -> None:
        if done:
            exchange.forward()
        end(exchange)

    return act


def say(answer: Answer, *, done: bool = False) -> Act:
    """Give this answer, without the effect of the request or after it."""
    return leave(lambda exchange: exchange.answer(answer), done=done)


def stop_half_way(end: End) -> Act:
    """Send a part of the answer, and end the exchange in this way."""

    def act(exchange: Exchange, chance: random.Random) -> None:
        answer = exchange.forward()
        exchange.answer(replace(answer, body=shortened(answer.body, chance)), announced=len(answer.body))
        end(exchange)

    return act


def change_answer(change: Change, *, summed: bool = True) -> Act:
    """Change the body, of which only the content shows it; without `summed`, the checksum in the headers is gone."""

    def act(exchange: Exchange, chance: random.Random) -> None:
        answer = exchange.forward()
        headers = {name: text for name, text in answer.headers.items() if summed or "checksum" not in name.lower()}
        exchange.answer(Answer(answer.status, change(answer.body, chance), headers))

    return act


def change_upload(change: Change) -> Act:
    def act(exchange: Exchange, chance: random.Random) -> None:
        request = exchange.request
        exchange.answer(exchange.forward(replace(request, body=change(request.body, chance))))

    return act


def do_later(*, now_too: bool) -> Act:
    """Do the request some requests later, too or only. The client gets an answer if it is done now."""

    def act(exchange: Exchange, chance: random.Random) -> None:
        if now_too:
            exchange.answer(exchange.forward())
        else:
            exchange.drop()
        exchange.forward_later(after=chance.randint(1, 20))

    return act


def mix_up(exchange: Exchange, chance: random.Random) -> None:
    exchange.answer(exchange.forward_mixed_up(chance.choice))


def flipped(data: bytes, chance: random.Random) -> bytes:
    """Return `data` with one random bit flipped."""
    at = chance.randrange(len(data) * 8)
    return data[: at // 8] + bytes([data[at // 8] ^ 1 << at % 8]) + data[at // 8 + 1 :]


def shortened(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


class Stage:
    """A place, with the recorded requests of an undisturbed run of each kind."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._recorded: dict[tuple[str, bool], list[tuple[Request, Answer]]] = {}

    def prepared(self, kind: str, *, taken_over: bool) -> FollowedWorld:
        """Make a new world. For a takeover, its first process died right after a send."""
        world = self.place.world(kind, BATCHES)
        if taken_over:
            assert not world.life(dies("after sink", number=DIES_AT_SEND)).live()
        self.place.proxy.arm()
        return world

    def recorded(self, kind: str, *, taken_over: bool) -> list[tuple[Request, Answer]]:
        """Return the requests of an undisturbed run."""
        key = kind, taken_over
        if key not in self._recorded:
            assert self.prepared(kind, taken_over=taken_over).life().live()
            self._recorded[key] = list(self.place.proxy.seen)
        return self._recorded[key]

    def targets(self, fault: Fault, kind: str, *, taken_over: bool) -> list[Target]:
        """List the requests of an undisturbed run to which a fault applies."""
        return [
            Target(kind, taken_over, at, str(request))
            for at, (request, answer) in enumerate(self.recorded(kind, taken_over=taken_over), 1)
            if fault.applies(request, answer)
        ]


class Campaign:
    """Runs in each of which one request is spoilt."""

    def __init__(self, stage: Stage, effort: Effort) -> None:
        self._stage = stage
        self._proxy = stage.place.proxy
        self._effort = effort
        self._endings: Counter[str] = Counter()
        self._requests: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._missed = 0
        """Runs that ended before the request that was to be spoilt."""
        self._outcome = Outcome()

    def run(self, spoilt: Sequence[tuple[Fault, Target]]) -> Outcome:
        for fault, target in spoilt:
            self._one(fault, target)
        lists = [self._requests.items(), self._endings.most_common()]
        if len(self._faults) > 1:
            lists.append(self._faults.most_common())
        self._outcome.detail = "; ".join(", ".join(f"{count} {what}" for what, count in sorted(one)) for one in lists)
        if self._missed:
            self._outcome.detail += f"; not counted: {self._missed} runs with fewer requests"
        if self._missed > len(spoilt) // 2:
            self._outcome.violations.append(f"{self._missed} of {len(spoilt)} requests did not come")
        return self._outcome

    def _one(self, fault: Fault, target: Target) -> None:
        self._stage.place.connect(fault.client)
        world = self._stage.prepared(target.kind, taken_over=target.taken_over)
        chance = random.Random(f"{self._effort.seed} {target.at}")
        self._proxy.arm(lambda exchange: fault.act(exchange, chance), at=target.at)
        name = f"{target.kind}, {'taken over' if target.taken_over else 'new'}, request {target.at} ({target.what})"
        try:
            self._live_to_the_end(world, late=fault.late)
            world.check_end(crashes=1 + target.taken_over)
        except Exception as error:  # noqa: BLE001 - any error is a finding
            self._outcome.violations.append(
                f"{fault.name}: {name}, seed {self._effort.seed}: {type(error).__name__}: {error}"
            )
        if self._proxy.hit is None and not self._stage.place.steady:
            self._missed += 1
            return
        self._faults[fault.name] += 1
        self._count(world, target, str(self._proxy.hit))

    def _live_to_the_end(self, world: FollowedWorld, *, late: bool) -> None:
        ending = "recovered"
        try:
            assert world.life().live()
        except WalSinkError as error:
            ending = type(error).__name__
            assert world.life().live()
        if self._proxy.settle() or late:
            assert world.life().live()
        problems, self._proxy.problems = self._proxy.problems, []
        assert not problems, problems
        if self._proxy.hit is not None:
            self._endings[ending] += 1
        else:
            assert not self._stage.place.steady, "the request did not come"

    def _count(self, world: FollowedWorld, target: Target, what: str) -> None:
        lost, repeated = rows_lost_and_repeated(world)
        self._outcome.rounds += 1
        self._outcome.lost += lost
        self._outcome.repeated += repeated
        if target.kind == "plain":
            self._outcome.allowed += WINDOW_ROWS * (1 + target.taken_over)
        self._requests["LIST" if "list-type" in what else what.split(maxsplit=1)[0]] += 1


def spoil(fault: Fault, stage: Stage, effort: Effort) -> Outcome:
    """Run one fault on a stage that may serve others too: all its requests, or a share of them."""
    stage.place.connect(fault.client)
    chance = random.Random(f"{effort.seed} {fault.name}")
    runs = [(kind, taken_over) for kind in fault.kinds for taken_over in (False, True)]
    some = chance.sample(runs, min(len(runs), effort.times(2 * len(runs))))
    targets = [target for kind, taken_over in some for target in stage.targets(fault, kind, taken_over=taken_over)]
    wanted = effort.times(len(targets) * len(runs) // len(some))
    chosen = chance.sample(targets, min(len(targets), wanted))
    return Campaign(stage, effort).run([(fault, target) for target in chosen])


def spoil_some(faults: Sequence[Fault], stage: Stage, effort: Effort, *, rounds: int, least: int = 1) -> Outcome:
    """Spoil requests of a new run and of a takeover, each in a drawn way: first each of them once, then again."""
    chance = random.Random(f"{effort.seed} {len(faults)}")
    fitting: dict[Target, list[Fault]] = {}
    for taken_over in (False, True):
        for fault in faults:
            for target in stage.targets(fault, "plain", taken_over=taken_over):
                fitting.setdefault(target, []).append(fault)
    ways = {target: chance.sample(possible, len(possible)) for target, possible in fitting.items()}
    chosen: list[tuple[Fault, Target]] = []
    for turn in range(len(faults)):
        again = [(possible[turn], target) for target, possible in ways.items() if turn < len(possible)]
        chosen += chance.sample(again, len(again))
    return Campaign(stage, effort).run(chosen[: effort.times(rounds, least=least)])
