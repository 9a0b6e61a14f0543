"""Retiring and renaming with a record of who did it: killed at any request, the same command completes it."""

from __future__ import annotations

import getpass
from collections.abc import Callable

import pytest

from tests.house.log import Log, TakeOver, paths
from tests.house.operate import changes_of, read_changes, rename, retire, write_down
from tests.house.protocol import read_names
from tests.support.repairs import end_roles, killed_everywhere, log_on
from tests.support.small_run import Place, Recorder
from tests.support.vault import Vault, VaultSink
from wal_sink.errors import ConfigError, CorruptError, HeldError
from wal_sink.operate.changes import Order, command_of, who


def two_sinks() -> Place:
    place = Place()
    place.stream(place.open({"a": Recorder(), "b": Recorder()}), 1)
    end_roles(place.wal)
    return place


def retired(place: Place, *, log: Log | None = None, name: str = "b", drop_pending: int = 0) -> tuple[int, ...]:
    log = log or log_on(place.wal)
    done = retire(log, name, drop_pending=drop_pending, take_over=TakeOver.IF_GONE, why="old")
    assert done.name == name
    return (done.through, *done.dropped)


def renamed(place: Place, *, log: Log | None = None, old: str = "b", new: str = "c") -> None:
    rename(log or log_on(place.wal), old, new, take_over=TakeOver.IF_GONE, why="new name")


def outcomes(place: Place) -> list[str]:
    return [change.outcome for change in changes_of(log_on(place.wal), "b", "b")]


def test_a_retirement_is_written_down() -> None:
    place = two_sinks()
    place.stream(place.open({"a": Recorder()}), 2)
    end_roles(place.wal)

    assert retired(place, drop_pending=1) == (1, 2)

    [change] = changes_of(log_on(place.wal), "b", "b")
    assert (change.outcome, change.why) == ("done", "old")
    assert change.command == "wal-sink sinks retire WAL b --drop-pending 1 --why old"
    assert retired(place, drop_pending=1) == (1, 2)
    assert outcomes(place) == ["done"]


def test_the_transactions_that_a_retired_sink_leaves_open_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """No later start serves the sink, so nobody aborted them."""
    place, vault = Place(), Vault()
    run = place.open({"b": VaultSink(vault)})
    query = place.query()
    query.start_batch(0, 0)
    query.stage(run, 0)
    end_roles(place.wal)

    retired(place, drop_pending=1)

    assert "up to 1 transactions may be open in its target" in caplog.text
    assert f"see {place.wal.url_of('sinks/b/begun')}" in caplog.text


def test_a_rename_is_written_down_each_time() -> None:
    place = two_sinks()

    renamed(place)
    renamed(place)
    renamed(place, old="c", new="b")
    renamed(place)

    assert outcomes(place) == ["done", "done", "done"]
    [first, *_] = read_changes(log_on(place.wal), "b")
    assert command_of(first, "b") == "wal-sink sinks rename WAL b c --why 'new name'"
    assert [sink.name for sink in read_names(log_on(place.wal)).sinks] == ["a", "c"]


def test_a_change_that_is_refused_leaves_no_record() -> None:
    place = two_sinks()
    run = place.open({"b": Recorder()})
    refused: list[Callable[[], object]] = [
        lambda: retired(place),
        lambda: retired(place, name="x"),
        lambda: renamed(place),
        lambda: renamed(place, new="a"),
    ]
    for change in refused:
        with pytest.raises((ConfigError, HeldError)):
            change()
    run.end()
    place.stream(place.open({"a": Recorder()}), 2)
    end_roles(place.wal)
    with pytest.raises(ConfigError, match="--drop-pending 1"):
        retired(place)

    assert outcomes(place) == []


def test_a_retirement_that_is_killed_anywhere_is_completed() -> None:
    for place in killed_everywhere(two_sinks, lambda place: place.wal, lambda log, place: retired(place, log=log)):
        live = Recorder()
        place.stream(place.open({"a": live}), 1)
        end_roles(place.wal)
        assert outcomes(place) in ([], ["unfinished"], ["done"])
        if outcomes(place) != ["done"]:
            assert paths.RETIRED not in place.wal.list("sinks/b")
        assert retired(place) == (1,)
        assert outcomes(place) == ["done"]
        assert paths.RETIRED in place.wal.list("sinks/b")


def test_a_killed_retirement_whose_sink_lacks_batches_by_now_asks_for_their_number() -> None:
    place = two_sinks()
    write_down(log_on(place.wal), Order("sinks retire", "b", why="old"), {})
    place.stream(place.open({"a": Recorder()}), 2)
    end_roles(place.wal)

    with pytest.raises(ConfigError, match="--drop-pending 1"):
        retired(place)

    assert outcomes(place) == ["unfinished"]
    assert retired(place, drop_pending=1) == (1, 2)


def test_a_rename_that_is_killed_anywhere_is_completed() -> None:
    for place in killed_everywhere(two_sinks, lambda place: place.wal, lambda log, place: renamed(place, log=log)):
        name = next(sink.name for sink in read_names(log_on(place.wal)).sinks if sink.folder == "b")
        recorder = Recorder()
        place.stream(place.open({"a": Recorder(), name: recorder}), 2)
        assert recorder.batches == [2]
        end_roles(place.wal)
        renamed(place)
        assert outcomes(place) == ["done"]
        assert [sink.name for sink in read_names(log_on(place.wal)).sinks] == ["a", "c"]


# --- records


def test_two_that_begin_at_once_have_a_record_each() -> None:
    place, begun = two_sinks(), list[str]()

    def rival(what: str, where: str) -> None:
        if (what, where) == ("before create", paths.change("b", 1)) and not begun:
            begun.append(where)
            write_down(log_on(place.wal), Order("skip", "b", {"batch": 7}), {})

    retired(place, log=log_on(place.wal, rival))

    assert [each.verb for each in read_changes(log_on(place.wal), "b")] == ["skip", "sinks retire"]


def test_a_record_holds_no_secret_of_a_command() -> None:
    place = two_sinks()
    url = "postgresql://etl:hunter2secret@db/shop?table=orders&password=abcdef99"
    order = Order(
        "catch-up",
        "b",
        {"--to": url, "--empty": True, "--like": "sqlite:///orders.db?table=a%26b", "--leave-out": ["1", "3-4"]},
        why=f"see {url}",
    )

    record = write_down(log_on(place.wal), order, {"target": [url]})

    assert order.is_same(record)
    command = "catch-up WAL --name b --to 'postgresql://db/shop?table=orders&password=***' --empty"
    command += " --like 'sqlite:///orders.db?table=a%26b'"
    assert f"{command} --leave-out 1 --leave-out 3-4 --why" in command_of(record, "b")
    stored = place.wal.read(paths.change("b", 1))
    assert [secret for secret in (b"hunter2secret", b"abcdef99") if secret in stored] == []


def test_a_user_without_a_name_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_name() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", no_name)
    assert who().startswith("unknown@")


def test_a_record_that_is_damaged_is_named() -> None:
    place = two_sinks()
    place.wal.create(paths.change("b", 1), b"damaged")

    with pytest.raises(CorruptError, match=r"sinks/b/changes/0000000001\.json"):
        retired(place)
