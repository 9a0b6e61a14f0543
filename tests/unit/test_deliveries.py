"""The targets that a user gives a `WalSink`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.house.protocol import GonePlace
from wal_sink import ConfigError, Delivery, Settings, Sink
from wal_sink.deliveries import (
    check_arguments,
    deliveries_of,
    folder_of,
    place_of,
    sinks_of,
)
from wal_sink.protocol.location import refuse_shared_folder


def take(_: object) -> None:
    """A target."""


def test_a_target_stands_alone_or_by_name_as_itself_or_in_a_delivery() -> None:
    assert deliveries_of(None, None, "default") == {}
    assert deliveries_of(take, "at_most_once", "a") == {"a": Delivery(take, guarantee="at_most_once")}
    given = Delivery(take)
    assert deliveries_of({"a": given, "b": take}, None, "default") == {"a": given, "b": Delivery(take)}


def test_a_guarantee_stands_in_one_place() -> None:
    with pytest.raises(ConfigError, match="sink 'a': state the guarantee in its Delivery only"):
        deliveries_of(Delivery(take), "at_most_once", "a")


def test_a_name_that_can_stand_in_no_path_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not a valid sink name"):
        deliveries_of(take, None, "a/b")


def test_a_sink_is_made_of_a_function_or_a_url(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/rows.db?table=rows"
    made = sinks_of({"a": Delivery(take), "b": Delivery(url)})
    assert [type(sink).__name__ for sink in made.values()] == ["FunctionSink", "SqlSink"]
    assert all(isinstance(sink, Sink) for sink in made.values())


@pytest.mark.parametrize("empty", [None, " "])
def test_a_folder_that_is_missing_is_refused_with_an_example_of_its_own(empty: str | None) -> None:
    with pytest.raises(ConfigError, match=r"such as checkpoint='s3://lake/checkpoint/orders'"):
        folder_of("checkpoint", empty)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"storage_options": "k=x"},
            "storage_options: expected a mapping of names to values, such as storage_options=",
        ),
        ({"checkpoint_options": 3}, "checkpoint_options: expected a mapping of names to values, such as "),
        ({"moved_from": 3}, "moved_from=3: expected text, such as moved_from='s3://lake/wal/orders'"),
        ({"name": 3}, "name=3: expected text, such as 'orders'"),
        ({"on_event": 3}, "on_event: expected a function of one event, found a int; for example on_event=print"),
        ({"metrics": "127.0.0.1:9464"}, "metrics: expected a Metrics, found a str; write metrics=Metrics()"),
    ],
)
def test_an_argument_of_a_wrong_kind_is_refused_by_its_name(wrong: dict[str, object], said: str) -> None:
    right = {"settings": Settings(), "storage_options": {"k": 1}, "checkpoint_options": None, "name": "orders"}
    check_arguments(**right, moved_from=None)
    check_arguments(**right, moved_from="s3://lake/wal")

    with pytest.raises(ConfigError, match=f"^{re.escape(said)}"):
        check_arguments(**{**right, "moved_from": None, **wrong})


def test_the_place_from_which_a_wal_was_moved_is_looked_at_or_believed_to_be_gone() -> None:
    assert place_of(None, None) is None
    assert place_of("s3://lake/wal", None) == "s3://lake/wal"
    assert place_of(None, "s3://lake/wal") == GonePlace("s3://lake/wal")
    with pytest.raises(ConfigError, match="moved_from and moved_from_gone: pass one"):
        place_of("s3://lake/wal", "s3://lake/wal")
    with pytest.raises(ConfigError, match=r"moved_from_gone=3: expected text"):
        place_of(None, 3)


def test_a_name_in_a_mapping_is_text() -> None:
    with pytest.raises(ConfigError, match=r"^the name of a sink=3: expected text"):
        deliveries_of({3: take}, None, "default")


def test_a_database_is_no_folder() -> None:
    assert folder_of("wal", "s3://lake/wal") == "s3://lake/wal"
    with pytest.raises(
        ConfigError, match=r"^checkpoint='jdbc:…': expected a folder on a file system .*s3://lake/checkpoint/orders"
    ):
        folder_of("checkpoint", "JDBC:postgresql://host/database")


@pytest.mark.parametrize(
    ("wal", "checkpoint", "said"),
    [
        ("s3://lake/a", "s3a://lake/a/", "lie in the same folder"),
        ("s3://lake/a", "s3://lake/a/c", "share a folder: the checkpoint lies inside the WAL"),
        ("s3://lake/a/w", "s3://lake/a", "share a folder: the WAL lies inside the checkpoint"),
    ],
)
def test_a_wal_and_a_checkpoint_share_no_folder(wal: str, checkpoint: str, said: str) -> None:
    refuse_shared_folder("s3://lake/ab", "s3://lake/a")

    with pytest.raises(ConfigError, match=f"^WAL {wal} and checkpoint {checkpoint} {said}\\. Deleting"):
        refuse_shared_folder(wal, checkpoint)


def test_settings_of_another_kind_are_shown_empty() -> None:
    with pytest.raises(ConfigError, match=r"found a str; write settings=Settings\(\)$"):
        check_arguments(settings="x", storage_options=None, checkpoint_options=None, moved_from=None, name="a")


def test_settings_given_as_a_dict_are_shown_as_arguments_without_texts() -> None:
    settings = {"chunk_rows": 2, "password": "hunter2"}

    with pytest.raises(ConfigError, match=r"write settings=Settings\(chunk_rows=2, password=…\)$"):
        check_arguments(settings=settings, storage_options=None, checkpoint_options=None, moved_from=None, name="a")
