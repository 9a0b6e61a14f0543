"""Answers that are not what they seem: partial failures, bodies that a check reads, bodies that grow while decoded."""

from __future__ import annotations

import gzip
import json
import pickle
import tracemalloc
import zlib
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from tests.house.sinks import Rejected
from tests.support.http_collection import IDS, SECRET, Collection, chunk, write
from tests.support.servers.http_target import Fault
from wal_sink.errors import DeliveryError, OutcomeUnknownError, PermanentError, RetryLaterError
from wal_sink.settings import Delivery, Retry
from wal_sink.testing import query_into
from wal_sink_backends.http.sink import HttpLookupSink, HttpSink

MIB = 1 << 20
PARTIAL = json.dumps({"items": [{"status": 201}, {"status": 422, "error": "bad id"}, {"status": 201}]})


def refused_items(status: int, headers: Mapping[str, str], body: bytes) -> dict[int, str]:
    """A check as a user may write it: the rows of the request that an answer names as refused."""
    assert status in (201, 207)
    assert headers["content-length"]
    if not body.startswith(b"{"):
        return {}
    items = json.loads(body)["items"]
    return {index: item["error"] for index, item in enumerate(items) if item["status"] >= 400}


class Check:
    """A check that does what a test says; a class of a module, so that it can be pickled."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __call__(self, *_: object) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


# 207.


@pytest.mark.parametrize("body", ["json", "jsonl", "rows"])
@pytest.mark.parametrize("idempotent", [True, False])
def test_a_multi_status_is_refused_for_good(keyed: Collection, body: Any, idempotent: bool) -> None:
    keyed.server.faults.append(Fault(status=207, body=PARTIAL))
    with pytest.raises(PermanentError, match=r"answered 207 .*bad id.*check="):
        write(HttpSink(keyed.url, body=body, idempotent=idempotent))


def test_a_multi_status_stops_the_delivery_and_marks_nothing(keyed: Collection) -> None:
    keyed.server.faults.append(Fault(status=207, body=PARTIAL))
    with query_into(HttpSink(keyed.url, idempotent=True)) as query:
        with pytest.raises(DeliveryError, match="207"):
            query.batch(pa.table({"id": IDS}))
        query.restart()
    assert keyed.ids == IDS


def test_a_check_names_the_refused_rows_of_a_multi_status(keyed: Collection) -> None:
    keyed.server.faults.append(Fault(status=207, body=PARTIAL))
    sink = HttpSink(keyed.url, idempotent=True, check=refused_items)
    assert write(pickle.loads(pickle.dumps(sink)), chunk(1, 2, 3)) == Rejected({1: "bad id"})  # noqa: S301 - its own


def test_a_check_reads_an_ordinary_answer_too(keyed: Collection) -> None:
    """Elasticsearch's `_bulk` answers 200 with errors in its body."""
    keyed.server.faults.append(Fault(status=201, body=PARTIAL))
    assert write(HttpSink(keyed.url, check=refused_items), chunk(1, 2, 3)) == Rejected({1: "bad id"})


def test_a_reason_of_a_check_shows_no_secret(keyed: Collection) -> None:
    sink = HttpSink(keyed.url, headers={"X-Key": SECRET}, check=Check({0: f"bad key {SECRET}"}))
    rejected = write(sink)
    assert isinstance(rejected, Rejected)
    assert SECRET not in rejected.reasons[0]


@pytest.mark.parametrize("answer", [True, False, 5, [1], {5: "x"}, {-1: "x"}, {"0": "x"}, {True: "x"}, {0: None}])
def test_a_check_that_answers_nonsense_is_refused(keyed: Collection, answer: Any) -> None:
    with pytest.raises(PermanentError, match=r"check.*expected None, or a dict from the index of a row"):
        write(HttpSink(keyed.url, check=Check(answer)))


@pytest.mark.parametrize("error", [PermanentError("no"), RetryLaterError("later", after_s=3), OutcomeUnknownError("?")])
def test_errors_of_ours_pass_through_a_check(keyed: Collection, error: Exception) -> None:
    with pytest.raises(type(error), match=str(error).replace("?", r"\?")):
        write(HttpSink(keyed.url, check=Check(error)))


def test_a_check_that_fails_is_an_unknown_outcome(keyed: Collection) -> None:
    with pytest.raises(
        OutcomeUnknownError, match=r"check.*ValueError.*It is not known whether the request took effect"
    ) as caught:
        write(HttpSink(keyed.url, headers={"X-Key": SECRET}, check=Check(ValueError(f"odd {SECRET}"))))
    assert SECRET not in str(caught.value)


def test_a_lookup_cannot_tell_which_rows_were_refused(plain: Collection) -> None:
    plain.server.faults.append(Fault(status=207, body=PARTIAL))
    sink = HttpLookupSink(plain.url, lookup_url=f"{plain.url}/chunks/{{key}}", check=refused_items)
    with pytest.raises(PermanentError, match=r"1 of 3 rows.*look-up"):
        write(sink, chunk(1, 2, 3))


def test_a_lookup_may_refuse_a_whole_chunk(plain: Collection) -> None:
    sink = HttpLookupSink(plain.url, lookup_url=f"{plain.url}/chunks/{{key}}", check=Check({0: "bad"}))
    assert write(sink, chunk(7)) == Rejected({0: "bad"})


def test_a_lookup_that_is_answered_in_parts_is_an_error(plain: Collection) -> None:
    plain.server.faults.append(Fault(status=207))
    sink = HttpLookupSink(plain.url, lookup_url=f"{plain.url}/chunks/{{key}}", check=refused_items)
    with query_into(Delivery(sink, retry=Retry(attempts=2))) as query:
        plain.server.faults.insert(0, Fault(cut="before"))
        with pytest.raises(DeliveryError, match=r"207.*expected 200"):
            query.batch(pa.table({"id": [1]}))


# How much of an answer is read.


def bomb(wbits: int) -> bytes:
    """480 MB of zeros in half a megabyte."""
    packer = zlib.compressobj(9, wbits=wbits)
    return b"".join(packer.compress(bytes(16 * MIB)) for _ in range(30)) + packer.flush()


@pytest.mark.parametrize(("encoding", "wbits"), [("gzip", 31), ("x-gzip", 31), ("deflate", 15), ("deflate", -15)])
@pytest.mark.parametrize("status", [201, 422])
def test_an_answer_that_grows_while_decoded_costs_little_memory(
    keyed: Collection, encoding: str, wbits: int, status: int
) -> None:
    keyed.server.faults.append(Fault(status=status, body=bomb(wbits), headers={"Content-Encoding": encoding}))
    sink = HttpSink(keyed.url, idempotent=True)
    write(sink, chunk(1))  # what is imported and cached once
    keyed.server.faults.append(Fault(status=status, body=bomb(wbits), headers={"Content-Encoding": encoding}))
    tracemalloc.start()
    try:
        write(sink, chunk(1))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * MIB, f"{peak / MIB:.0f} MiB"


def test_a_check_does_not_judge_half_an_answer(keyed: Collection) -> None:
    keyed.server.faults.append(Fault(status=207, body=bomb(31), headers={"Content-Encoding": "gzip"}))
    with pytest.raises(PermanentError, match=r"larger than 1048576 bytes.*pass a larger max_answer_bytes"):
        write(HttpSink(keyed.url, check=refused_items))


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "GZIP", "identity"])
def test_a_check_gets_the_body_decoded(keyed: Collection, encoding: str) -> None:
    encode: Any = {"gzip": gzip.compress, "deflate": zlib.compress, "identity": bytes}[encoding.lower()]
    keyed.server.faults.append(Fault(status=207, body=encode(PARTIAL.encode()), headers={"Content-Encoding": encoding}))
    assert write(HttpSink(keyed.url, check=refused_items), chunk(1, 2, 3)) == Rejected({1: "bad id"})


def test_a_body_of_several_parts_is_read_whole(keyed: Collection) -> None:
    body = gzip.compress(PARTIAL[:20].encode()) + gzip.compress(PARTIAL[20:].encode())
    keyed.server.faults.append(Fault(status=207, body=body, headers={"Content-Encoding": "gzip"}))
    assert write(HttpSink(keyed.url, check=refused_items), chunk(1, 2, 3)) == Rejected({1: "bad id"})


@pytest.mark.parametrize("encoding", ["br", "deflate, gzip"])
def test_a_check_does_not_judge_what_it_cannot_decode(keyed: Collection, encoding: str) -> None:
    keyed.server.faults.append(Fault(status=207, body=PARTIAL, headers={"Content-Encoding": encoding}))
    with pytest.raises(PermanentError, match=f"Content-Encoding '{encoding}'"):
        write(HttpSink(keyed.url, check=refused_items))


@pytest.mark.parametrize("body", [b"no gzip at all", gzip.compress(PARTIAL.encode())[:-9]], ids=["no gzip", "cut off"])
def test_a_body_that_is_not_what_it_says_is_an_unknown_outcome(keyed: Collection, body: bytes) -> None:
    keyed.server.faults.append(Fault(status=201, body=body, headers={"Content-Encoding": "gzip"}))
    with pytest.raises(OutcomeUnknownError, match="gzip"):
        write(HttpSink(keyed.url, check=refused_items))
