"""Rows that an API refuses, and APIs that tell which keys they have."""

from __future__ import annotations

import pytest

from tests.house.sinks import Rejected
from tests.support.http_collection import CONTEXT, IDS, Collection, chunk, opened, refuse_3, write
from tests.support.servers.http_target import Fault
from wal_sink.errors import PermanentError
from wal_sink_backends.http.sink import HttpLookupSink, HttpSink, Pacing, TargetFailedError

# Rows the API refuses.


def test_a_row_that_is_refused_is_told_and_the_others_are_written(keyed: Collection) -> None:
    keyed.server.refuse = refuse_3
    sink = HttpSink(keyed.url, body="rows", idempotent=True)
    assert write(sink) == Rejected({2: "422 Unprocessable Entity: id 3 is refused"})
    assert keyed.ids == [1, 2, 4, 5]


def test_after_the_api_was_repaired_only_the_refused_row_is_new(keyed: Collection) -> None:
    keyed.server.refuse = refuse_3
    sink = HttpSink(keyed.url, body="rows", idempotent=True)
    write(sink)
    keyed.server.forget()
    assert write(sink) is None
    assert keyed.ids == [1, 2, 4, 5, 3]


def test_a_refused_chunk_is_halved_where_rows_may_repeat(plain: Collection) -> None:
    plain.server.refuse = refuse_3
    assert write(HttpSink(plain.url)) == Rejected({2: "422 Unprocessable Entity: id 3 is refused"})
    assert plain.ids == [1, 2, 4, 5]
    first = plain.keys_sent
    write(HttpSink(plain.url))
    assert plain.keys_sent == first * 2, "the parts have keys that last"


def test_a_chunk_too_large_is_halved_where_rows_may_repeat(plain: Collection) -> None:
    plain.server.faults.append(Fault(status=413, times=10**6, meets=lambda _, body: len(body) > 20))
    assert write(HttpSink(plain.url)) is None
    assert plain.ids == IDS


def test_halving_ends_after_a_hundred_refused_rows(plain: Collection) -> None:
    plain.server.refuse = lambda _row: "all wrong"
    with pytest.raises(PermanentError, match=r"the API refused more than 100 rows\. The last error: 422 .*all wrong"):
        write(HttpSink(plain.url), chunk(*range(1000)))
    assert len(plain.server.requests) < 1000


@pytest.mark.parametrize("status", [400, 413, 422])
def test_an_idempotent_sink_never_halves(keyed: Collection, status: int) -> None:
    """The API may take the chunk whole when it comes again, and would not know its parts from it."""
    keyed.server.faults.append(Fault(status=status, body="row 3"))
    with pytest.raises(
        PermanentError,
        match=rf"all 5 rows were refused.*{status}.*row 3.*does not halve the chunk.*wal-sink show WAL \d.*body='rows'"
        r".*#body=rows.*&body=rows.*on_rejected='dead_letter'.*--on-rejected dead_letter.*chunk_rows",
    ):
        write(HttpSink(keyed.url, idempotent=True))
    assert keyed.ids == []


# Lookups.


def test_other_answers_than_yes_and_no_are_errors(plain: Collection) -> None:
    sink = HttpLookupSink(plain.url, lookup_url=f"{plain.url}/chunks/{{key}}")
    plain.server.faults += [Fault(status=status) for status in (204, 401, 503)]
    with opened(sink):
        for error, status in ((PermanentError, 204), (PermanentError, 401), (TargetFailedError, 503)):
            with pytest.raises(error, match=f"chunk .*: GET .*/chunks/{CONTEXT.own_key('k')} answered {status}"):
                sink.was_applied("k")
        assert sink.was_applied("k") is False


@pytest.mark.parametrize("status", [429, 503])
def test_a_lookup_that_would_wait_too_long_tells_when_to_come_back(plain: Collection, status: int) -> None:
    sink = HttpLookupSink(plain.url, lookup_url=f"{plain.url}/chunks/{{key}}", pacing=Pacing(max_wait_s=0.2))
    plain.server.faults.append(Fault(status=status, headers={"Retry-After": "86400"}))
    with opened(sink), pytest.raises(TargetFailedError, match=rf"GET .*/chunks/\w+ answered {status}") as caught:
        sink.was_applied("k")
    assert caught.value.after_s == 86400
    assert len(plain.server.requests) == 1
