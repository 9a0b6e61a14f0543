"""Every request of a run on S3, spoilt in every way that networks and servers have.

An undisturbed run is recorded. Then its first, second, … last request is spoilt, one in each further run. The run
recovers by itself, or it ends with a clear error and the next start finishes. The target and the server show it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from tests.chaos.faulty_proxy import Answer, Exchange, Request
from tests.chaos.s3_world import IMPATIENT, Client, S3Place, S3World, rows_lost_and_repeated, s3_place
from tests.chaos.scenario import Effort, Outcome, Scenario
from tests.simulation.histories.plans import Shape
from tests.simulation.world import dies
from wal_sink.errors import WalSinkError

BATCHES: Shape = ((7, 1), (1,))
"""Two segments of four chunks and one, then one segment of one chunk."""
DIES_AT_SEND = 4
"""The send after which the first process dies. Lost progress would then repeat more rows than a crash and a fault."""
KINDS = ("plain", "idempotent", "transactional")
WINDOW_ROWS = 2
"""The rows of one chunk. Only one segment is in progress at a time."""
_SOON: Client = {**IMPATIENT, "read_timeout": 1}
_PATIENT: Client = {**IMPATIENT, "retries": {"mode": "standard", "total_max_attempts": 4}}

Applies = Callable[[Request, Answer], bool]
Act = Callable[[Exchange, random.Random], None]
Change = Callable[[bytes, random.Random], bytes]
End = Callable[[Exchange], None]


def _to_any(_: Request, __: Answer) -> bool:
    return True


def _to_writes(request: Request, _: Answer) -> bool:
    return request.method in {"PUT", "POST"}


def _to_puts(request: Request, answer: Answer) -> bool:
    return request.method == "PUT" and answer.status == 200


def _to_objects_read(request: Request, answer: Answer) -> bool:
    return request.method == "GET" and answer.status == 200 and "list-type" not in request.target


def _to_listings(request: Request, _: Answer) -> bool:
    return "list-type" in request.target


def _to_answers_with_body(_: Request, answer: Answer) -> bool:
    return bool(answer.body)


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to spoil a request."""

    name: str
    act: Act
    applies: Applies = _to_any
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


def _error(status: int, code: str) -> Answer:
    return Answer(status, f"<Error><Code>{code}</Code><Message>set by a test</Message></Error>".encode())


def _leave(end: End, *, done: bool = False) -> Act:
    """End the exchange in this way, without the effect of the request or after it."""

    def act(exchange: Exchange, _: random.Random) -> None:
        if done:
            exchange.forward()
        end(exchange)

    return act


def _say(answer: Answer, *, done: bool = False) -> Act:
    """Give this answer, without the effect of the request or after it."""
    return _leave(lambda exchange: exchange.answer(answer), done=done)


def _stop_half_way(end: End) -> Act:
    """Send a part of the answer, and end the exchange in this way."""

    def act(exchange: Exchange, chance: random.Random) -> None:
        answer = exchange.forward()
        exchange.answer(replace(answer, body=shortened(answer.body, chance)), announced=len(answer.body))
        end(exchange)

    return act


def _change_answer(change: Change, *, summed: bool = True) -> Act:
    """Change the body, of which only the content shows it; without `summed`, the checksum in the headers is gone."""

    def act(exchange: Exchange, chance: random.Random) -> None:
        answer = exchange.forward()
        headers = {name: text for name, text in answer.headers.items() if summed or "checksum" not in name.lower()}
        exchange.answer(Answer(answer.status, change(answer.body, chance), headers))

    return act


def _change_upload(change: Change) -> Act:
    def act(exchange: Exchange, chance: random.Random) -> None:
        request = exchange.request
        exchange.answer(exchange.forward(replace(request, body=change(request.body, chance))))

    return act


def _do_later(*, now_too: bool) -> Act:
    """Do the request some requests later, too or only. The client gets an answer if it is done now."""

    def act(exchange: Exchange, chance: random.Random) -> None:
        if now_too:
            exchange.answer(exchange.forward())
        else:
            exchange.drop()
        exchange.forward_later(after=chance.randint(1, 20))

    return act


def _mix_up(exchange: Exchange, chance: random.Random) -> None:
    exchange.answer(exchange.forward_mixed_up(chance.choice))


def flipped(data: bytes, chance: random.Random) -> bytes:
    """Return `data` with one random bit flipped."""
    at = chance.randrange(len(data) * 8)
    return data[: at // 8] + bytes([data[at // 8] ^ 1 << at % 8]) + data[at // 8 + 1 :]


def shortened(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


_DROP, _RESET, _SILENCE = Exchange.drop, Exchange.reset, Exchange.keep_silent
_CONFLICT = _error(409, "ConditionalRequestConflict")
_BROKEN = _error(500, "InternalError")
_BUSY = _error(503, "SlowDown")
_BARE_412 = Answer(412)
_EMPTY = Answer(200)
"""Success and nothing else, as a device between client and server may answer."""
_PLAIN = ("plain",)

FAULTS = (
    Fault("connection dropped before the effect", _leave(_DROP)),
    Fault("connection dropped after the effect", _leave(_DROP, done=True)),
    Fault("connection reset before the effect", _leave(_RESET), kinds=_PLAIN),
    Fault("connection reset amid the answer", _stop_half_way(_RESET), _to_answers_with_body, kinds=_PLAIN),
    Fault("answer lost, botocore asks again", _leave(_DROP, done=True), _to_puts, client=_PATIENT, kinds=_PLAIN),
    Fault("409 ConditionalRequestConflict", _say(_CONFLICT)),
    Fault("bare 412 without effect", _say(_BARE_412)),
    Fault("bare 412 after the effect", _say(_BARE_412, done=True), _to_writes),
    Fault("500 without effect", _say(_BROKEN)),
    Fault("500 after the effect", _say(_BROKEN, done=True), _to_writes),
    Fault("503 SlowDown", _say(_BUSY), kinds=_PLAIN),
    Fault("answer cut short", _stop_half_way(_DROP), _to_answers_with_body, kinds=_PLAIN),
    Fault("answer shortened, its length too", _change_answer(shortened), _to_answers_with_body),
    Fault("empty answer of success", _say(_EMPTY, done=True), _to_answers_with_body),
    Fault("bit flipped in an answer", _change_answer(flipped), _to_objects_read),
    Fault("bit flipped in an answer without checksum", _change_answer(flipped, summed=False), _to_objects_read),
    Fault("bit flipped in a listing", _change_answer(flipped), _to_listings),
    Fault("answer to a read of another object", _mix_up, _to_objects_read),
    Fault("upload cut short", _change_upload(shortened), _to_writes, kinds=_PLAIN),
    Fault("bit flipped in an upload", _change_upload(flipped), _to_writes, kinds=_PLAIN),
    Fault("no answer in time, no effect", _leave(_SILENCE), client=_SOON, kinds=_PLAIN),
    Fault("no answer in time, after the effect", _leave(_SILENCE, done=True), client=_SOON, kinds=_PLAIN),
    Fault("answer that stops half-way", _stop_half_way(_SILENCE), _to_answers_with_body, client=_SOON, kinds=_PLAIN),
    Fault("dropped, its effect comes later", _do_later(now_too=False), _to_writes, late=True),
    Fault("done, and done again later", _do_later(now_too=True), _to_writes, late=True),
)


class Stage:
    """A place, with the recorded requests of an undisturbed run of each kind."""

    def __init__(self, place: S3Place) -> None:
        self.place = place
        self._recorded: dict[tuple[str, bool], list[tuple[Request, Answer]]] = {}

    def prepared(self, kind: str, *, taken_over: bool) -> S3World:
        """Make a new world. For a takeover, its first process died right after a send."""
        world = self.place.world(kind, BATCHES)
        if taken_over:
            assert not world.life(dies("after sink", number=DIES_AT_SEND)).live()
        self.place.proxy.arm()
        return world

    def targets(self, fault: Fault, kind: str, *, taken_over: bool) -> list[Target]:
        """List the requests of an undisturbed run to which a fault applies."""
        key = kind, taken_over
        if key not in self._recorded:
            assert self.prepared(kind, taken_over=taken_over).life().live()
            self._recorded[key] = list(self.place.proxy.seen)
        return [
            Target(kind, taken_over, at, str(request))
            for at, (request, answer) in enumerate(self._recorded[key], 1)
            if fault.applies(request, answer)
        ]


class Campaign:
    """All runs of one fault, or a share of them."""

    def __init__(self, fault: Fault, stage: Stage, effort: Effort) -> None:
        self._fault = fault
        self._stage = stage
        self._proxy = stage.place.proxy
        self._effort = effort
        self._endings: Counter[str] = Counter()
        self._requests: Counter[str] = Counter()
        self._outcome = Outcome()

    def run(self) -> Outcome:
        for target in self._chosen():
            self._one(target)
        requests = ", ".join(f"{count} {what}" for what, count in sorted(self._requests.items()))
        endings = ", ".join(f"{count} {how}" for how, count in self._endings.most_common())
        self._outcome.detail = f"{requests}; {endings}"
        return self._outcome

    def _chosen(self) -> list[Target]:
        """Draw a share of the kinds of runs, then of the requests in them. Each kind is recorded first."""
        chance = random.Random(f"{self._effort.seed} {self._fault.name}")
        runs = [(kind, taken_over) for kind in self._fault.kinds for taken_over in (False, True)]
        some = chance.sample(runs, min(len(runs), self._effort.times(2 * len(runs))))
        targets = [
            target
            for kind, taken_over in some
            for target in self._stage.targets(self._fault, kind, taken_over=taken_over)
        ]
        wanted = self._effort.times(len(targets) * len(runs) // len(some))
        return chance.sample(targets, min(len(targets), wanted))

    def _one(self, target: Target) -> None:
        world = self._stage.prepared(target.kind, taken_over=target.taken_over)
        chance = random.Random(f"{self._effort.seed} {target.at}")
        self._proxy.arm(lambda exchange: self._fault.act(exchange, chance), at=target.at)
        name = f"{target.kind}, {'taken over' if target.taken_over else 'new'}, request {target.at} ({target.what})"
        try:
            self._live_to_the_end(world)
            world.check_end(crashes=1 + target.taken_over)
        except Exception as error:  # noqa: BLE001 - any error is a finding
            self._outcome.violations.append(f"{name}, seed {self._effort.seed}: {type(error).__name__}: {error}")
        self._count(world, target)

    def _live_to_the_end(self, world: S3World) -> None:
        ending = "recovered"
        try:
            assert world.life().live()
        except WalSinkError as error:
            ending = type(error).__name__
            assert world.life().live()
        self._endings[ending] += 1
        if self._proxy.settle() or self._fault.late:
            assert world.life().live()
        problems, self._proxy.problems = self._proxy.problems, []
        assert not problems, problems
        assert self._proxy.hit is not None, "the request did not come"

    def _count(self, world: S3World, target: Target) -> None:
        lost, repeated = rows_lost_and_repeated(world)
        self._outcome.rounds += 1
        self._outcome.lost += lost
        self._outcome.repeated += repeated
        if target.kind == "plain":
            self._outcome.allowed += WINDOW_ROWS * (1 + target.taken_over)
        self._requests["LIST" if "list-type" in target.what else target.what.split()[0]] += 1


def _run(fault: Fault, effort: Effort) -> Outcome:
    with s3_place() as place:
        return spoil(fault, Stage(place), effort)


def spoil(fault: Fault, stage: Stage, effort: Effort) -> Outcome:
    """Run one fault on a stage that may serve others too."""
    stage.place.connect(fault.client)
    return Campaign(fault, stage, effort).run()


SCENARIOS: Sequence[Scenario] = tuple(
    Scenario(
        f"S3: {fault.name}",
        law="I1 to I8 hold; the run recovers by itself, or ends with a clear error and the next start finishes",
        unit="spoilt request",
        run=partial(_run, fault),
    )
    for fault in FAULTS
)
