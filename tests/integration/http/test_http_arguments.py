"""Arguments that reach an API, or must not."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.house.kit import chunks_of
from tests.support.http_collection import SECRET, Collection, chunk, write
from tests.support.servers.http_target import Fault
from wal_sink.errors import PermanentError
from wal_sink_backends.http.sink import HttpSink
from wal_sink_backends.http.urls import http_sink


def test_a_variable_that_is_not_set(plain: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORDERS_AUTH", raising=False)
    with pytest.raises(PermanentError, match="environment variable ORDERS_AUTH is not set"):
        write(HttpSink(plain.url, headers_from_env={"Authorization": "ORDERS_AUTH"}))


def test_a_variable_that_is_no_header(plain: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_AUTH", f"{SECRET}\r\nX-Other: 1")
    with pytest.raises(PermanentError, match="ORDERS_AUTH is not a valid header value") as caught:
        write(HttpSink(plain.url, headers_from_env={"Authorization": "ORDERS_AUTH"}))
    assert SECRET not in str(caught.value)


def test_a_column_json_cannot_carry(plain: Collection) -> None:
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    (some,) = chunks_of(pa.table({"odd": union}))
    with pytest.raises(PermanentError, match=r"batch 0, chunk .*column 'odd'"):
        write(HttpSink(plain.url), some)


def test_write_before_open_says_so(plain: Collection) -> None:
    with pytest.raises(RuntimeError, match=r"not open: call open\(\) first"):
        HttpSink(plain.url).write(chunk())


def test_options_stand_behind_the_hash(keyed: Collection) -> None:
    sink = http_sink(f"{keyed.url}?a=1#idempotent=true&body=jsonl&rows_per_s=1e6&done=409,410&timeout_s=5")
    assert sink.idempotent
    write(sink)
    (seen,) = keyed.server.requests
    assert seen.path.endswith("?a=1")
    assert seen.headers["content-type"] == "application/x-ndjson"
    keyed.server.faults.append(Fault(status=410))
    assert write(sink) is None


def test_headers_by_url(keyed: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_KEY", SECRET)
    write(http_sink(f"{keyed.url}#headers_from_env=X-Api-Key:ORDERS_KEY"))
    assert keyed.server.requests[0].headers["x-api-key"] == SECRET
