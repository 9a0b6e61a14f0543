"""A WAL on S3 whose objects were copied by hand to another key: one of the two places is refused, before and after."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result

import wal_sink.walsink
from tests.support.servers.s3_server import S3Server
from tests.support.verbs import Place

pytestmark = pytest.mark.s3


@pytest.fixture
def place(tmp_path: Path, s3_server: S3Server, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    sys.modules.pop("verbs_sinks", None)
    place = Place(tmp_path, f"{s3_url}/old", s3_server.storage_options, tmp_path / "copy")
    place.make()
    yield place
    sys.modules.pop("verbs_sinks", None)


def drained(place: Place, *, code: int) -> Result:
    done = place.invoke("drain", place.wal, "--to", place.module("take"), "--name", "late")
    assert done.exit_code == code, (done.output, done.exception)
    return done


def test_a_copy_on_s3_by_hand_becomes_the_wal(place: Place) -> None:
    old, new = place, replace(place, wal=place.wal.removesuffix("old") + "new")
    for path in old.store().list("", recursive=True):
        new.store().create(path, old.store().read(path))
    assert "wal-sink adopt" in drained(new, code=2).output

    done = new.invoke("adopt", new.wal, "--yes", "--json", "--why", "another bucket")

    assert done.exit_code == 0, (done.output, done.exception)
    told = json.loads(done.stdout)
    assert (told["place"]["there"], told["action"], told["query"]["match"]) == ("same", "place", "same")
    assert {share["sink"]: share["never"]["first"] for share in told["place"]["sinks"]} == {
        "letters": None,
        "orders": None,
        "late": None,
    }
    assert "Two copies of one WAL" in drained(old, code=2).output
    drained(new, code=0)


def test_a_wal_that_came_to_s3_from_a_disk_is_adopted_and_ended_on_the_disk(place: Place, tmp_path: Path) -> None:
    on_disk = Place(tmp_path / "disk", str(tmp_path / "disk" / "wal"))
    on_disk.folder.mkdir()
    on_disk.make()
    new = replace(place, wal=place.wal.removesuffix("old") + "from-disk")
    for path in on_disk.store().list("", recursive=True):
        new.store().create(path, on_disk.store().read(path))

    done = new.invoke("adopt", new.wal, "--yes")

    assert done.exit_code == 0, (done.output, done.exception)
    assert "the same WAL lies there too" in done.stdout
    assert "Two copies of one WAL" in drained(on_disk, code=2).output
    drained(new, code=0)
