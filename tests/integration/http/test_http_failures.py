"""Connections that fail, and processes that are killed on either side of them."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.http_collection import IDS, Collection, write
from tests.support.servers.http_target import Fault, HttpTarget
from tests.support.servers.ports import free_port
from tests.support.servers.tls import Authority
from tests.support.waiting import wait_until
from wal_sink.errors import OutcomeUnknownError, PermanentError
from wal_sink.testing import query_into
from wal_sink_backends.http.sink import HttpLookupSink, HttpSink, TargetFailedError

# Connections.


@pytest.mark.parametrize("cut", ["before", "after"])
def test_no_answer_is_an_unknown_outcome_and_a_key_makes_it_harmless(keyed: Collection, cut: str) -> None:
    keyed.server.faults.append(Fault(cut=cut))
    sink = HttpSink(keyed.url, idempotent=True)
    with pytest.raises(
        OutcomeUnknownError,
        match=r"could not be read \(RemoteProtocolError.*It is not known whether the request took effect",
    ):
        write(sink)
    assert keyed.ids == (IDS if cut == "after" else [])
    write(sink)
    assert keyed.ids == IDS


def test_an_answer_that_is_late_is_an_unknown_outcome(keyed: Collection) -> None:
    given_up = threading.Event()
    keyed.server.faults.append(Fault(until=given_up))
    with pytest.raises(OutcomeUnknownError, match="ReadTimeout"):
        write(HttpSink(keyed.url, timeout_s=0.2))
    wait_until(lambda: bool(keyed.server.requests), "the request arrived: later it would be one of the next test")
    given_up.set()


def test_nobody_listening() -> None:
    url = f"http://127.0.0.1:{free_port()}/orders"
    with pytest.raises(TargetFailedError, match=r"cannot be reached, and nothing was sent: .*Connection refused"):
        write(HttpSink(url))


def test_a_host_that_is_not_there() -> None:
    with pytest.raises(TargetFailedError, match=r"http://nowhere\.invalid/orders cannot be reached"):
        write(HttpSink("http://user:hunter2@nowhere.invalid/orders"))


# Through the core.


def test_an_api_that_fails_now_and_then_gets_every_row_once(keyed: Collection) -> None:
    faults = [
        Fault(status=503),
        Fault(cut="after"),
        Fault(cut="before"),
        Fault(status=429, headers={"Retry-After": "0"}),
    ]
    keyed.server.faults += faults
    with query_into(HttpSink(keyed.url, idempotent=True)) as query:
        query.batch(pa.table({"id": IDS}))
        query.batch(pa.table({"id": [6, 7]}))
    assert keyed.ids == [*IDS, 6, 7]
    assert not any(fault.times for fault in faults)


def test_a_lookup_spares_what_an_answer_got_lost_for(plain: Collection) -> None:
    plain.server.faults += [Fault(cut="after")]
    sink = HttpLookupSink(plain.url, lookup_url=f"{plain.url}/chunks/{{key}}")
    with query_into(sink) as query:
        query.batch(pa.table({"id": [1, 2]}))
    assert plain.ids == [1, 2]
    assert [seen.method for seen in plain.server.requests] == ["POST", "GET", "GET"]  # the last for what nobody sent


def test_a_sink_without_a_lookup_or_keys_repeats_a_request_of_unknown_outcome(plain: Collection) -> None:
    plain.server.faults += [Fault(cut="after")]
    with query_into(HttpSink(plain.url)) as query:
        query.batch(pa.table({"id": [1, 2]}))
    assert plain.ids == [1, 2, 1, 2]


# Killed processes.


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "ours")


@pytest.fixture
def tls_target(tmp_path: Path, authority: Authority) -> Iterator[HttpTarget]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.certificate("127.0.0.1"))
    with HttpTarget(tmp_path / "rows.db", tls=context) as server:
        yield server


def test_a_certificate_is_checked(tls_target: HttpTarget, authority: Authority) -> None:
    url = f"{tls_target.url}/plain/orders"
    with pytest.raises(PermanentError, match=r"CERTIFICATE_VERIFY_FAILED.*pass verify="):
        write(HttpSink(url))
    write(HttpSink(url, verify=str(authority.file)))
    write(HttpSink(url, verify=False))
    assert [row["id"] for row in tls_target.store.rows("orders")] == IDS * 2
