"""Texts of several layers: each name is said once, where it comes first."""

from __future__ import annotations

import pytest

from wal_sink.reporting.layers import said_once


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("batch 3, sink 'a': gave up: batch 3, chunk k: no route", "batch 3, sink 'a': gave up: chunk k: no route"),
        ("batch 3: batch 3, sink 'a': batch 3, sink 'a': no route", "batch 3: sink 'a': no route"),
        ("segment s-1, chunk k: segment s-1, sink 'b c': lost", "segment s-1, chunk k: sink 'b c': lost"),
        ("sink 'a': sink 'b': lost", "sink 'a': sink 'b': lost"),
        ("a minibatch 3: batch 3: lost", "a minibatch 3: batch 3: lost"),
        ("batch 3 was lost: batch 3", "batch 3 was lost: batch 3"),
    ],
)
def test_each_name_is_said_where_it_comes_first(text: str, said: str) -> None:
    assert said_once(text) == said
