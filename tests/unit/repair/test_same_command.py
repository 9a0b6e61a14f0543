"""A replay goes on only to the target that it was begun for, under its own journal record, and keeps no secret."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.repairs import end_roles, log_on
from tests.support.small_run import Place, Recorder
from tests.unit.repair.test_resend import ROWS, delivered, replayed
from wal_sink import PermanentError
from wal_sink.checking.verify import Check
from wal_sink.errors import ConfigError, DeliveryError, HeldError
from wal_sink.inspection import SparkCommit, read_health, read_status
from wal_sink.recovery.sink_changes import describe_unserved
from wal_sink.recovery.sink_names import read_names
from wal_sink.repair.journal import Order, begin, command_of, finish, read_journal
from wal_sink.repair.letters import Chosen, replay_in_journal
from wal_sink.replay import ReplayResult
from wal_sink.sinks.base import Sink
from wal_sink.sinks.chunk import Chunk
from wal_sink.stores.base import Store
from wal_sink.wal import paths
from wal_sink.wal.records import SinkRecord
from wal_sink.wal.sink_records import RetiredRecord

SECRETS = (b"hunter2secret", b"abcdef99")


class Telling(Sink):
    """A client of a user, whose description tells too much."""

    def describe(self) -> str:
        return "my client(postgresql://etl:hunter2secret@db/x?password=abcdef99)"

    def write(self, chunk: Chunk) -> None:
        del chunk


def sending(got: list[int], *, down_at: int | None = None) -> Callable[[Chunk], None]:
    def send(chunk: Chunk) -> None:
        if chunk.batch_id == down_at:
            raise PermanentError("down")
        got.append(chunk.batch_id)

    return send


def interrupted(batches: tuple[int, ...] = (1, 2, 3), through: int = 3) -> Place:
    """A WAL with a replay that failed at its last batch but one."""
    place = delivered(through=through)
    with pytest.raises(DeliveryError):
        replayed(place, sending([], down_at=batches[-2]), list(batches), typed="prod:send")
    end_roles(place.wal)
    return place


def everything(store: Store) -> bytes:
    return b"\n".join(store.read(path) for path in store.list("", recursive=True))


# --- the target


def test_a_replay_goes_on_to_no_target_of_another_spelling() -> None:
    place, staging = interrupted(), list[int]()

    with pytest.raises(HeldError, match=r"wal-sink replay WAL 1-3 --to prod:send --why 'on purpose' \(--to is .*send"):
        replayed(place, sending(staging), [1, 2, 3], typed="staging:send")

    assert staging == []
    assert replayed(place, sending([]), [1, 2, 3], typed="prod:send").earlier_batches == 1


def test_the_same_spelling_of_another_target_is_refused_too() -> None:
    place = interrupted()

    with pytest.raises(HeldError, match="is not finished"):
        replayed(place, Recorder(), [1, 2, 3], typed="prod:send")


def test_the_command_names_a_url_with_its_table_and_without_its_password() -> None:
    place = delivered()
    replayed(place, Recorder(), [1], typed="postgresql://etl:hunter2secret@db/shop?table=orders&password=abcdef99")

    [entry] = read_journal(log_on(place.wal))
    assert entry.begun.arguments["--to"] == "postgresql://***@db/shop?table=orders&password=***"
    assert "'postgresql://***@db/shop?table=orders&password=***' --why 'on purpose'" in command_of(entry.begun)
    assert "--why" not in command_of(entry.begun, why=False)


def test_dead_letters_too_go_on_only_to_the_target_as_typed() -> None:
    place = delivered()

    def killed() -> ReplayResult:
        raise KeyboardInterrupt

    def sent(typed: str, replay: Callable[[], ReplayResult]) -> ReplayResult:
        more: Any = {"target": "send", "chosen": Chosen(), "unknown": False, "why": "x", "age": "30d"}
        return replay_in_journal(log_on(place.wal), "a", replay, typed=typed, **more)

    with pytest.raises(KeyboardInterrupt):
        sent("prod:send", killed)
    wanted = r"wal-sink dead-letters replay WAL --name a --to prod:send --older-than 30d --why x \(--to is send there\)"
    with pytest.raises(HeldError, match=wanted):
        sent("staging:send", lambda: ReplayResult(0, 0, 0))
    sent("prod:send", lambda: ReplayResult(0, 0, 0))
    assert [entry.state for entry in read_journal(log_on(place.wal))] == ["done"]


# --- the journal


def test_after_the_journal_was_lost_a_replay_is_no_silent_repetition() -> None:
    place, got = delivered(), Recorder()
    replayed(place, got, [1])
    place.wal.delete([f"{paths.REPAIRS}/{name}" for name in place.wal.list(paths.REPAIRS)])

    with pytest.raises(HeldError, match=r"'replay-1' meanwhile, or by an earlier replay whose record .* is gone"):
        replayed(place, got, [1])


def test_a_replay_whose_sink_was_retired_before_its_end_is_refused() -> None:
    place = interrupted()
    log = log_on(place.wal)
    log.create(paths.retired("replay-1"), RetiredRecord(through=1, run_id="", **log.stamp()))

    with pytest.raises(ConfigError, match=r"sink 'replay-1' of this replay was retired, and it lacks .*'2-3'.*give-up"):
        replayed(place, sending([]), [1, 2, 3], typed="prod:send")


def test_the_registration_names_the_record_of_the_journal() -> None:
    place = delivered()
    replayed(place, Recorder(), [1])

    log = log_on(place.wal)
    [entry] = read_journal(log)
    assert log.require(SinkRecord, paths.sink("replay-1")).repair == entry.begun.id


def test_a_description_brings_no_secret_into_the_wal() -> None:
    place = delivered(to=Telling())
    replayed(place, Telling(), [1])
    finish(log_on(place.wal), begin(log_on(place.wal), Order("x", {}), {}), {"failed": ["at http://u:hunter2secret@h"]})

    assert [secret for secret in SECRETS if secret in everything(place.wal)] == []
    assert replayed(place, Telling(), [1]).rows_sent == sum(ROWS)


# --- its sink meanwhile


def test_no_run_serves_the_sink_of_an_unfinished_replay() -> None:
    place, got = interrupted((1, 4), through=5), Recorder()

    with pytest.raises(ConfigError, match=r"'replay-1' of .* belongs to an unfinished replay.*wal-sink repairs list"):
        place.open({"a": Recorder(), "replay-1": got})
    assert got.chunks == []


def test_the_sink_of_an_unfinished_replay_has_no_lag_and_its_warning_names_the_repair() -> None:
    place = interrupted((1, 4), through=5)

    log = log_on(place.wal)
    sink = next(sink for sink in read_names(log).sinks if sink.name == "replay-1")
    said = describe_unserved(log, sink)
    assert "belongs to an unfinished replay" in said
    assert "wal-sink repairs list WAL" in said
    assert "drain" not in said
    status = read_status(place.wal)
    own, its = read_health(place.wal, status, SparkCommit(5, "")).sinks
    assert status.sinks[1].is_replay
    assert (own.is_replay, its.is_replay, its.lag_s, its.behind_spark, its.pending.batches) == (
        False,
        True,
        None,
        None,
        0,
    )
    assert "wal-sink repairs list" in its.lag_note
    assert its.keeps_back > 0
    assert not its.is_late(1.0)
    assert list(Check(place.wal).run()) == []
