"""A standalone cluster whose executors are killed, and whose executors live on when their driver is killed.

A driver that is killed here loses only its own processes. Its executors belong to the workers of the cluster. An
executor that notices ends at once. One whose JVM is paused (as by a long collection of garbage) does not notice, and
its Python goes on sending. One that sleeps as a whole goes on when it wakes up. A newer driver has waited with
another Spark, and delivers meanwhile.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tests.chaos.driver import CHUNK_ROWS, Job
from tests.chaos.executors import killed_executors
from tests.chaos.lives import Chain, add_counts, guarded, tally
from tests.chaos.moments import too_early
from tests.chaos.processes import LakeIn
from tests.chaos.scenario import Effort, Outcome, Scenario
from tests.chaos.targets import Sent
from tests.support.processes import Child, is_running
from tests.support.servers.standalone import NO_LIMIT_OF_LOSSES, Executor, Standalone, standalone

EXECUTORS_KILLED, DRIVERS_KILLED = 30, 30
SEGMENTS = 2
LONGEST_BATCH = 480
"""Rows of a batch. A segment of several chunks is in delivery for longer than an executor needs to notice anything."""
ANSWERS_S = (0.3, 0.5, 0.8)
LONGEST_DELAY_S = 1.0
NEWER_CHUNKS = 4
"""Chunks that the newer driver delivers before the orphans wake up."""
STAGING_PART = 0.3
"""The part of the drivers that are killed soon after they began to stage a batch. The others had a chunk delivered."""
AHEAD = 4
"""Batches that wait to be staged or delivered. More of them would only grow."""
END_S = 60.0
POLL_S = 0.02


class Orphans(StrEnum):
    """The state of the executors when their driver is killed."""

    AWAKE = "awake"
    ONE_PAUSED = "the JVM of one is paused"
    PAUSED = "their JVMs are paused"
    ASLEEP = "asleep, with their Pythons"


MIX = (Orphans.PAUSED, Orphans.ASLEEP, Orphans.PAUSED, Orphans.AWAKE, Orphans.PAUSED, Orphans.ONE_PAUSED)


def executors_of_a_cluster(effort: Effort, *, lake: LakeIn = lambda _: nullcontext()) -> Outcome:
    """Kill executors of a standalone cluster during staging and delivery."""
    with lake(effort.folder / "lake") as table:
        environment = table.environment if table else {}
        started = standalone(
            effort.folder / "spark", cores=1, master_options=NO_LIMIT_OF_LOSSES, worker_environment=environment
        )
        with started as cluster:
            return killed_executors(effort, most=EXECUTORS_KILLED, master=cluster.url, lake=table)


def drivers_of_a_cluster(effort: Effort) -> Outcome:
    """Kill drivers one after the other. The next one delivers while the executors of the last one live on."""
    kills = effort.times(DRIVERS_KILLED)
    chain = Chain(effort.folder / "chain", random.Random(effort.seed), SEGMENTS, LONGEST_BATCH)
    with standalone(effort.folder / "spark", cores=3, memory="3g") as cluster, ExitStack() as stack:
        line = _Line(chain, cluster, stack)
        guarded(effort.seed, chain, lambda: line.run(kills))
    outcome = Outcome(rounds=len(line.deaths))
    # The last driver of the line is killed too, and its executors end by themselves.
    rows = add_counts(outcome, chain, allowed=(outcome.rounds + 1) * SEGMENTS * CHUNK_ROWS)
    sent = chain.targets.sent()
    outcome.violations += [*line.violations(), *sent_too_late(sent), *repeated_too_often(sent)]
    outcome.detail = "\n".join([*line.detail(), tally("rows by target", Counter(rows))])
    return outcome


@dataclass
class _Orphan:
    """One executor of a killed driver."""

    executor: Executor
    processes: Collection[int]
    """Its JVM and its Pythons when the driver was killed."""
    lived_s: float = 0.0
    """The time from its driver's death to the end of its last process."""
    saw_newer: bool = False
    """Whether it lived when the newer driver's first chunk arrived."""

    @property
    def lives(self) -> bool:
        return any(map(is_running, self.processes))


@dataclass
class _Death:
    """The death of one driver."""

    number: int
    state: Orphans
    orphans: Sequence[_Orphan]
    lone_chunks: int = 0
    """Chunks that came from an orphan after its driver's death."""
    late_chunks: int = 0
    """Of these, the ones after the first chunk of the newer driver."""


@dataclass
class _Line:
    """Drivers that follow one another on a cluster. The next one waits with another Spark and other executors."""

    chain: Chain
    cluster: Standalone
    stack: ExitStack
    deaths: list[_Death] = field(default_factory=list)
    _started: int = 0

    def run(self, kills: int) -> None:
        states = [MIX[number % len(MIX)] for number in range(kills)]
        self.chain.chance.shuffle(states)
        driver = self._stand_by()
        self._begin(driver)
        for state in states:
            following = self._stand_by()
            self._run_until_a_moment(driver)
            self._kill(driver, following, state)
            driver = following
        driver.kill()
        self._finish()

    def _stand_by(self) -> Child:
        """Start a driver that waits with its own executors, and return when it does."""
        self._started += 1
        job = replace(self._job(), begins_with=f"begin-{self._started}")
        driver = self.stack.enter_context(self.chain.driver(job))
        driver.wait_until(lambda: self._feeds() and "ready" in driver.output.split(), "it is ready")
        return driver

    def _job(self) -> Job:
        answer_s = self.chain.chance.choice(ANSWERS_S)
        return replace(self.chain.job, master=self.cluster.url, where="executors", answer_s=answer_s)

    def _begin(self, driver: Child) -> None:
        """Let the driver that was started last begin its query."""
        assert driver.running
        (self.chain.root / f"begin-{self._started}").touch()

    def _feeds(self) -> bool:
        seen = self.chain.seen()
        unread = self.chain.files - (seen.files + 1)
        self.chain.feed(max(0, AHEAD - unread - (seen.planned - seen.marked)))
        return True

    def _run_until_a_moment(self, driver: Child) -> None:
        """Wait until the driver begins to stage a batch, or has a chunk delivered, and then for a drawn time."""
        planned, (_, size) = self.chain.seen().planned, self._newest_term()

        def stages() -> bool:
            return self._feeds() and self.chain.seen().planned > planned

        def delivers() -> bool:
            return self._feeds() and bool(self.chain.targets.sent(after=size))

        in_staging = self.chain.chance.random() < STAGING_PART
        driver.wait_until(stages if in_staging else delivers, "it began something")
        time.sleep(self.chain.chance.uniform(0, LONGEST_DELAY_S))

    def _kill(self, driver: Child, following: Child, state: Orphans) -> None:
        """Kill a driver, let the following one deliver, and wake the orphans up meanwhile."""
        app = _app_of(driver)
        executors = [executor for executor in self.cluster.executors() if executor.app == app]
        stopped = self._put_to_rest(executors, state)
        orphans = [_Orphan(executor, [executor.pid, *executor.workers()]) for executor in executors]
        driver.kill()
        killed_s = time.monotonic()
        self.deaths.append(death := _Death(len(self.deaths) + 1, state, orphans))
        newest, size = self._newest_term()
        self._begin(following)
        living = list(orphans)

        def look(*, newer: bool) -> None:
            for orphan in [*living]:
                if not orphan.lives:
                    living.remove(orphan)
                    orphan.lived_s = time.monotonic() - killed_s
                elif newer:
                    orphan.saw_newer = True

        def delivers(chunks: int) -> bool:
            newer = [sent for sent in self.chain.targets.sent(after=size) if sent.term > newest]
            look(newer=bool(newer))
            return self._feeds() and len(newer) >= chunks

        following.wait_until(lambda: delivers(NEWER_CHUNKS), "the newer driver delivers")
        _signal(stopped, signal.SIGCONT)

        def ended() -> bool:
            look(newer=True)
            return not living

        following.wait_until(lambda: self._feeds() and ended(), "the executors of the killed driver ended", END_S)
        sent = self.chain.targets.sent(after=size)
        first = [each.term > newest for each in sent].index(True)
        death.lone_chunks = sum(each.term <= newest for each in sent)
        death.late_chunks = sum(each.term <= newest for each in sent[first:])

    def _newest_term(self) -> tuple[int, int]:
        """Return the highest term that the plain target saw, and the size of its file. Orphans may be adding to it."""
        path = self.chain.targets.plain
        size = path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0
        return max((each.term for each in self.chain.targets.sent()), default=0), size

    def _put_to_rest(self, executors: Sequence[Executor], state: Orphans) -> list[int]:
        """Stop the processes that the state names, while none of them keeps others from the table.

        The worker of their host is stopped too: it would kill a JVM that does not end within ten seconds.
        """
        chosen = executors[:1] if state is Orphans.ONE_PAUSED else executors if state is not Orphans.AWAKE else []
        hosts = [self.cluster.worker_of(executor).pid for executor in chosen]
        _signal(hosts, signal.SIGSTOP)
        while True:
            stopped = [executor.pid for executor in chosen]
            if state is Orphans.ASLEEP:
                stopped += [pid for executor in chosen for pid in executor.workers()]
            _signal(stopped, signal.SIGSTOP)
            if state is not Orphans.ASLEEP or not self.chain.targets.is_locked():
                return [*stopped, *hosts]
            _signal(stopped, signal.SIGCONT)
            time.sleep(POLL_S)

    def _finish(self) -> None:
        """Run a last driver that nobody kills: every row arrives."""
        self.chain.feed(2)
        with self.chain.driver(replace(self._job(), ending="once", answer_s=0.0)) as child:
            child.succeed()

    def violations(self) -> list[str]:
        """List what the deaths broke, and whether there were too few orphans for the scenario to mean anything."""
        found = [
            f"batches {early} came before Spark completed them" for early in [too_early(self.chain.job.place)] if early
        ]
        lived = [death for death in self.deaths if any(orphan.saw_newer for orphan in death.orphans)]
        still = [death for death in self.deaths if death.state is not Orphans.AWAKE]
        if len(lived) < len(still):
            found.append(
                f"only in {len(lived)} of {len(still)} deaths an executor lived when the newer driver delivered"
            )
        return found

    def detail(self) -> list[str]:
        orphans = [orphan for death in self.deaths for orphan in death.orphans]
        seen = sum(orphan.saw_newer for orphan in orphans)
        lone, late = sum(death.lone_chunks for death in self.deaths), sum(death.late_chunks for death in self.deaths)
        sent = (
            f"- chunks that they sent to the plain target after their driver's death: {lone}; of these after the newer "
            f"driver's first one: {late}"
        )
        return [
            tally("executors when their driver was killed", Counter(str(death.state) for death in self.deaths)),
            f"- executors of killed drivers: {len(orphans)}; {seen} of them lived when the newer driver delivered",
            sent,
            *(line for death in self.deaths for line in _names(death)),
        ]


def _names(death: _Death) -> list[str]:
    """Name the executors that lived when the newer driver delivered."""
    return [
        f"- driver {death.number}: {orphan.executor} lived on for {orphan.lived_s:.1f} s ({death.state})"
        for orphan in death.orphans
        if orphan.saw_newer
    ]


def sent_too_late(sent: Sequence[Sent]) -> list[str]:
    """List the terms of the plain target under which more than one chunk of a segment came after a higher term.

    The target's lines are in the order in which they were written. A process that was superseded may finish the chunk
    of each segment that it held, and no more.
    """
    highest, late = 0, Counter[tuple[int, int]]()
    for each in sent:
        highest = max(highest, each.term)
        late[each.term, each.ordinal] += each.term < highest
    return [
        f"term {term} sent {chunks} chunks of segment {ordinal} after a higher term, expected at most 1"
        for (term, ordinal), chunks in late.items()
        if chunks > 1
    ]


def repeated_too_often(sent: Sequence[Sent]) -> list[str]:
    """List the take-overs at which more than one chunk of a segment was repeated.

    A take-over is named by the newer of the two terms that sent the chunk: the older one may also come last.
    """
    senders: dict[str, int] = {}
    repeated = Counter[tuple[int, int, int]]()
    for each in sent:
        if each.key in senders:
            repeated[max(senders[each.key], each.term), each.batch, each.ordinal] += 1
        senders[each.key] = each.term
    return [
        f"at the take-over of term {term}, {chunks} chunks of segment {ordinal} of batch {batch} were repeated, "
        "expected at most 1"
        for (term, batch, ordinal), chunks in repeated.items()
        if chunks > 1
    ]


def _app_of(driver: Child) -> str:
    """Return the application of a driver, as it told it."""
    return next(line for line in driver.output.splitlines() if line.startswith("application ")).split()[1]


def _signal(pids: Collection[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it ended
            os.kill(pid, number)


SCENARIOS: Sequence[Scenario] = (
    Scenario(
        "cluster: executors killed",
        "SIGKILL of an executor of a standalone cluster during staging or delivery loses no row, repeats none on "
        "exactly-once sinks, and repeats at most one chunk per segment on a plain sink",
        "kill",
        executors_of_a_cluster,
    ),
    Scenario(
        "cluster: drivers killed, executors live on",
        "a driver's executors that outlive it send at most the chunk of each segment in their hand once a newer driver "
        "delivers; no row is lost, and none is repeated on exactly-once sinks",
        "kill",
        drivers_of_a_cluster,
    ),
)
