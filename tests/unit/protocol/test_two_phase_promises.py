"""Two-phase sinks: what is promised, and what is refused."""

from __future__ import annotations

import pytest

from tests.house.log import load_segment
from tests.house.sinks import promise
from tests.support.small_run import Recorder
from tests.support.two_phase import place, staged
from tests.support.vault import Vault, VaultSink
from wal_sink import (
    ConfigError,
    DeadLetters,
    Delivery,
    HistoryError,
)


def test_exactly_once_is_promised_and_less_is_not_needed(vault: Vault) -> None:
    for wanted in (None, "exactly_once", "at_least_once", "at_most_once"):
        kept = promise(VaultSink(vault), Delivery(VaultSink(vault), guarantee=wanted), "a")
        assert kept.guarantee == "exactly_once"
        assert "stay invisible until their batch is complete" in kept.sentence


def test_dead_letters_need_another_kind_of_sink(vault: Vault) -> None:
    with pytest.raises(ConfigError, match="on_rejected='dead_letter' needs a sink that is called chunk by chunk"):
        place(1).open({"a": Delivery(VaultSink(vault), on_rejected="dead_letter")})


def test_dead_letters_are_not_replayed_to_it(vault: Vault) -> None:
    where = place(1)
    run = where.open({"a": Recorder()})
    where.stream(run, 0)
    with pytest.raises(ConfigError, match="cannot receive single rows"):
        DeadLetters(run.log, name="a").replay(VaultSink(vault))


def test_a_name_keeps_its_kind(vault: Vault) -> None:
    where = place(1)
    where.stream(where.open({"a": Recorder()}), 0)
    with pytest.raises(ConfigError, match="two-phase"):
        where.open({"a": VaultSink(vault)})


def test_a_segment_that_was_not_kept_is_not_looked_for(vault: Vault) -> None:
    where = place(1)
    run = where.open({"a": VaultSink(vault, keep_segments=False)})
    staged(where, run)
    manifest = run.history.staged(0)
    assert manifest is not None
    segment = manifest.segments[0]
    assert (segment.kept, segment.bytes, segment.crc32, segment.rows) == (False, 0, 0, 1)
    with pytest.raises(HistoryError, match="did not keep the rows of this segment"):
        load_segment(where.wal, segment)
