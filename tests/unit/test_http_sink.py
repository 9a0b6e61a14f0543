"""`HttpSink` against an API on loopback that refuses, fails, cuts connections, and is killed.

What every sink of its kinds must do is tested in `tests/contract/test_http_backend.py`.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import json
import logging
import random
import socket
import sqlite3
import ssl
import textwrap
import time
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.contract.http_target import Fault, HttpTarget
from tests.processes import CHECKOUT, Child
from wal_sink.chunk import Chunk
from wal_sink.errors import ConfigError, DeliveryError, OutcomeUnknownError, PermanentError
from wal_sink.settings import Delivery
from wal_sink.sink import Lookup, Rejected, SinkContext
from wal_sink.testing import FakeQuery
from wal_sink.testing.bench import chunks_of
from wal_sink_backends.http import HttpLookupSink, HttpSink, Pacing, Statuses, TargetFailedError, http_sink
from wal_sink_backends.pacing import NotNowError

CONTEXT = SinkContext(wal_id="wal", sink="default", term=1, batch_id=0, columns=("id",), on_executor=False)
SECRET = "hunter2-of-the-api"  # noqa: S105 - a test's own
IDS = [1, 2, 3, 4, 5]


@contextlib.contextmanager
def opened(sink: HttpSink) -> Iterator[HttpSink]:
    sink.open(CONTEXT)
    try:
        yield sink
    finally:
        sink.close()


def chunk(*ids: int, batch_id: int = 0) -> Chunk:
    (made,) = chunks_of(pa.table({"id": list(ids or IDS)}), batch_id=batch_id, chunk_rows=10**6)
    return made


def write(sink: HttpSink, *chunks: Chunk) -> Rejected | None:
    with opened(sink):
        return [sink.write(some) for some in chunks or [chunk()]][-1]


class Collection:
    """One collection of the API."""

    def __init__(self, server: HttpTarget, kind: str, name: str) -> None:
        self.server, self.name = server, name
        self.url = f"{server.url}/{kind}/{name}"

    @property
    def ids(self) -> list[int]:
        return [row["id"] for row in self.server.store.rows(self.name)]

    @property
    def keys_sent(self) -> list[str | None]:
        return [seen.key for seen in self.server.requests]


@pytest.fixture
def keyed(http_target: HttpTarget, request: pytest.FixtureRequest) -> Collection:
    """Ignores keys it has seen."""
    return Collection(http_target, "keys", f"{request.node.name[:40]}-{random.randrange(10**9)}".replace("/", "_"))


@pytest.fixture
def plain(keyed: Collection) -> Collection:
    return Collection(keyed.server, "plain", keyed.name)


# What is sent.


@pytest.mark.parametrize(
    ("body", "content_type", "content"),
    [
        ("json", "application/json", b'[{"id":1},{"id":2}]'),
        ("jsonl", "application/x-ndjson", b'{"id":1}\n{"id":2}\n'),
    ],
)
def test_a_chunk_goes_in_one_request(keyed: Collection, body: Any, content_type: str, content: bytes) -> None:
    write(HttpSink(keyed.url, body=body), chunk(1, 2))
    (seen,) = keyed.server.requests
    assert (seen.method, seen.headers["content-type"], seen.body) == ("POST", content_type, content)
    assert seen.key == chunk(1, 2).key
    assert keyed.ids == [1, 2]


def test_rows_go_one_by_one_under_their_own_keys(keyed: Collection) -> None:
    write(HttpSink(keyed.url, body="rows", method="PUT", idempotency_header="X-Once"), chunk(1, 2))
    seen = keyed.server.requests
    assert [one.body for one in seen] == [b'{"id":1}', b'{"id":2}']
    assert [one.headers["x-once"] for one in seen] == chunk(1, 2).row_keys()
    assert {one.method for one in seen} == {"PUT"}


def test_texts_with_line_breaks_stay_one_row(keyed: Collection) -> None:
    texts = ["a\nb", "a\r\nb", "a\u2028b", "a\x0bb\x85", ""]
    (some,) = chunks_of(pa.table({"id": texts}), chunk_rows=9)
    write(HttpSink(keyed.url, body="rows"), some)
    assert [row["id"] for row in keyed.server.store.rows(keyed.name)] == texts


def test_headers_come_from_the_environment(keyed: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_AUTH", f"Bearer {SECRET}\n")  # as files of secrets end
    write(HttpSink(keyed.url, headers={"X-Site": "7"}, headers_from_env={"Authorization": "ORDERS_AUTH"}))
    headers = keyed.server.requests[0].headers
    assert (headers["authorization"], headers["x-site"]) == (f"Bearer {SECRET}", "7")


def test_the_chunks_of_a_task_share_a_connection(keyed: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    connect = socket.create_connection

    def connect_and_count(*args: Any, **more: Any) -> socket.socket:
        made.append(args)
        return connect(*args, **more)

    monkeypatch.setattr(socket, "create_connection", connect_and_count)
    write(HttpSink(keyed.url, body="rows"), *(chunk(number, batch_id=number) for number in range(5)))
    assert len(keyed.server.requests) == 5
    assert len(made) == 1


# What the API answers.


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_every_2xx_is_success(plain: Collection, status: int) -> None:
    plain.server.faults.append(Fault(status=status))
    assert write(HttpSink(plain.url)) is None


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 507, 599])
def test_statuses_that_may_pass(plain: Collection, status: int) -> None:
    plain.server.faults.append(Fault(status=status, body="not now"))
    with pytest.raises(
        TargetFailedError, match=rf"batch 0, chunk {chunk().key}: POST http.* answered {status}.*: not now"
    ):
        write(HttpSink(plain.url))


@pytest.mark.parametrize(
    ("status", "advice"),
    [(401, "check the credentials"), (403, "check the credentials"), (404, "check URL and method"), (451, "Mend")],
)
def test_statuses_that_will_not_pass(plain: Collection, status: int, advice: str) -> None:
    plain.server.faults.append(Fault(status=status))
    with pytest.raises(PermanentError, match=f"answered {status} .*{advice}"):
        write(HttpSink(plain.url))


def test_statuses_can_be_given_other_meanings(plain: Collection) -> None:
    statuses = Statuses(done=(409,), retry=(404,), refused=(418,))
    plain.server.faults += [Fault(status=409), Fault(status=418), Fault(status=404)]
    sink = HttpSink(plain.url, statuses=statuses)
    assert write(sink) is None
    assert write(sink, chunk(1)) == Rejected({0: "418 I'm a Teapot"})
    with pytest.raises(TargetFailedError, match="404"):
        write(sink)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirects_are_not_followed(plain: Collection, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_AUTH", SECRET)
    elsewhere = f"{plain.server.url}/plain/elsewhere?token=abcdef"
    plain.server.faults.append(Fault(status=status, headers={"Location": elsewhere}))
    with pytest.raises(
        PermanentError, match=r"points to http.*/plain/elsewhere, and redirects are not followed"
    ) as caught:
        write(HttpSink(plain.url, headers_from_env={"Authorization": "ORDERS_AUTH"}))
    assert len(plain.server.requests) == 1
    assert "abcdef" not in str(caught.value)


def test_an_answer_is_shown_shortened_and_without_secrets(plain: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_AUTH", f"Bearer {SECRET}")
    body = f"you said {SECRET} and tokentokentoken\n\x1b[31m" + "x" * 5_000_000
    plain.server.faults.append(Fault(status=500, body=body, headers={"X-Debug": "header-of-theirs"}))
    url = f"{plain.url}?api_key=tokentokentoken"
    with pytest.raises(TargetFailedError, match=r"you said \*\*\* and \*\*\* \[31mxxx") as caught:
        write(HttpSink(url, headers_from_env={"Authorization": "ORDERS_AUTH"}))
    told = str(caught.value)
    assert len(told) < 500
    assert not any(text in told for text in (SECRET, "tokentoken", "header-of-theirs", "\x1b"))


@pytest.mark.parametrize(
    "location",
    ["/elsewhere?token=abcdef", "/elsewhere#token=abcdef", "//user:abcdef@host/elsewhere", "/elsewhere?a b abcdef"],
)
def test_a_redirect_shows_no_more_than_a_path(plain: Collection, location: str) -> None:
    plain.server.faults.append(Fault(status=307, headers={"Location": location}))
    with pytest.raises(PermanentError, match=r"points to \S*/elsewhere, and redirects") as caught:
        write(HttpSink(plain.url))
    assert "abcdef" not in str(caught.value)


def test_a_redirect_that_echoes_a_header_shows_it_not(plain: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_AUTH", f"Bearer {SECRET}")
    plain.server.faults.append(Fault(status=302, headers={"Location": f"/for/{SECRET}/x"}))
    with pytest.raises(PermanentError, match=r"points to /for/\*\*\*/x, and"):
        write(HttpSink(plain.url, headers_from_env={"Authorization": "ORDERS_AUTH"}))


def test_what_httpx_logs_of_requests_has_no_secrets(plain: Collection, caplog: pytest.LogCaptureFixture) -> None:
    url = plain.url.replace("://", f"://user:{SECRET}@") + "?token=abcdef"
    before = logging.getLogger("httpx").level
    write(HttpSink(url))
    assert logging.getLogger("httpx").level == before
    with caplog.at_level(logging.INFO, logger="httpx"):
        write(HttpSink(url), chunk(1), chunk(2))
    told = [record.getMessage() for record in caplog.records if record.name == "httpx"]
    assert told == [f'HTTP Request: POST {plain.url} "HTTP/1.1 201 Created"'] * 2
    assert len(logging.getLogger("httpx").filters) == 1


@pytest.mark.parametrize(
    ("credentials", "echo"),
    [
        ("user:pa%2Fss", "pa%2Fss"),
        ("user:pa%2Fss", "pa/ss"),
        ("user:pa%2fss", "pa%2Fss"),
        ("user:abcd", "abcd"),
        ("tokn", "tokn"),
        ("user:pa%2Fss", "dXNlcjpwYS9zcw=="),
    ],
)
def test_credentials_are_masked_in_every_spelling(plain: Collection, credentials: str, echo: str) -> None:
    plain.server.faults.append(Fault(status=500, body=f"the user said <{echo}> and true"))
    url = plain.url.replace("://", f"://{credentials}@") + "?wait=true"
    with pytest.raises(TargetFailedError, match=r"the user said <\*\*\*> and true"):
        write(HttpSink(url))


def test_the_secrets_of_a_lookup_are_masked_too(plain: Collection) -> None:
    plain.server.faults.append(Fault(status=500, body="abcdef it was"))
    sink = HttpLookupSink(plain.url, lookup_url=f"{plain.url}/{{key}}?token=abcdef")
    with opened(sink), pytest.raises(TargetFailedError, match=r"\*\*\* it was"):
        sink.write(chunk())


def test_an_answer_that_cannot_be_decoded_is_an_unknown_outcome(plain: Collection) -> None:
    plain.server.faults.append(Fault(status=200, body="no gzip", headers={"Content-Encoding": "gzip"}))
    with pytest.raises(OutcomeUnknownError, match="may or may not have taken effect: DecodingError"):
        write(HttpSink(plain.url))


# Rows the API refuses.


def refuse_3(row: dict[str, Any]) -> str:
    return f"id {row['id']} is refused" if row["id"] == 3 else ""


def test_a_row_that_is_refused_is_told_and_the_others_are_written(keyed: Collection) -> None:
    keyed.server.refuse = refuse_3
    sink = HttpSink(keyed.url, body="rows", idempotent=True)
    assert write(sink) == Rejected({2: "422 Unprocessable Entity: id 3 is refused"})
    assert keyed.ids == [1, 2, 4, 5]


def test_after_the_api_was_mended_only_the_refused_row_is_new(keyed: Collection) -> None:
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


def test_a_row_too_large_is_refused(plain: Collection) -> None:
    plain.server.faults.append(Fault(status=413, body="too large", times=10**6, meets=lambda _, body: b"4" in body))
    assert write(HttpSink(plain.url)) == Rejected({3: "413 Request Entity Too Large: too large"})
    assert plain.ids == [1, 2, 3, 5]


def test_halving_ends_after_a_hundred_refused_rows(plain: Collection) -> None:
    plain.server.refuse = lambda _row: "all wrong"
    with pytest.raises(PermanentError, match=r"more than 100 rows are refused, the last with: 422 .*all wrong"):
        write(HttpSink(plain.url), chunk(*range(1000)))
    assert len(plain.server.requests) < 1000


@pytest.mark.parametrize("status", [400, 413, 422])
def test_an_idempotent_sink_never_halves(keyed: Collection, status: int) -> None:
    """The API may take the chunk whole when it comes again, and would not know its parts from it."""
    keyed.server.faults.append(Fault(status=status, body="row 3"))
    with pytest.raises(
        PermanentError, match=rf"all 5 rows were refused.*{status}.*row 3.*not halved.*body='rows'.*chunk_rows"
    ):
        write(HttpSink(keyed.url, idempotent=True))
    assert keyed.ids == []


def test_nor_does_one_with_a_lookup(plain: Collection) -> None:
    plain.server.refuse = refuse_3
    with pytest.raises(PermanentError, match="all 5 rows were refused"):
        write(HttpLookupSink(plain.url, lookup_url=f"{plain.url}/chunks/{{key}}"))
    assert plain.ids == []


def test_a_chunk_of_one_row_has_nothing_to_halve(keyed: Collection) -> None:
    keyed.server.refuse = refuse_3
    assert write(HttpSink(keyed.url, idempotent=True), chunk(3)) == Rejected(
        {0: "422 Unprocessable Entity: id 3 is refused"}
    )


# Lookups.


def test_only_a_sink_with_a_lookup_can_be_asked(plain: Collection) -> None:
    assert not isinstance(HttpSink(plain.url), Lookup)
    assert isinstance(http_sink(f"{plain.url}#lookup_url={plain.url}/chunks/{{key}}"), Lookup)


def test_other_answers_than_yes_and_no_are_errors(plain: Collection) -> None:
    sink = HttpLookupSink(plain.url, lookup_url=f"{plain.url}/chunks/{{key}}")
    plain.server.faults += [Fault(status=status) for status in (204, 401, 503)]
    with opened(sink):
        for error, status in ((PermanentError, 204), (PermanentError, 401), (TargetFailedError, 503)):
            with pytest.raises(error, match=f"chunk k: GET .*/chunks/k answered {status}"):
                sink.was_applied("k")
        assert sink.was_applied("k") is False


def test_a_lookup_waits_as_long_as_it_is_told(plain: Collection) -> None:
    sink = HttpLookupSink(plain.url, lookup_url=f"{plain.url}/chunks/{{key}}")
    plain.server.faults += [Fault(status=status, headers={"Retry-After": "0"}) for status in (429, 503)]
    with opened(sink):
        assert sink.was_applied("k") is False
    assert len(plain.server.requests) == 3


@pytest.mark.parametrize("status", [429, 503])
def test_a_lookup_that_would_wait_too_long_tells_when_to_come_back(plain: Collection, status: int) -> None:
    sink = HttpLookupSink(plain.url, lookup_url=f"{plain.url}/chunks/{{key}}", pacing=Pacing(max_wait_s=0.2))
    plain.server.faults.append(Fault(status=status, headers={"Retry-After": "86400"}))
    with opened(sink), pytest.raises(TargetFailedError, match=f"GET .*/chunks/k answered {status}") as caught:
        sink.was_applied("k")
    assert caught.value.after_s == 86400
    assert len(plain.server.requests) == 1


# Pacing.


def test_a_429_is_waited_for_and_sent_again(plain: Collection) -> None:
    plain.server.faults.append(Fault(status=429, headers={"Retry-After": "1"}))
    started_s = time.monotonic()
    write(HttpSink(plain.url))
    assert 1.0 <= time.monotonic() - started_s < 10
    assert plain.ids == IDS


def test_a_date_is_waited_for(keyed: Collection) -> None:
    date = (dt.datetime.now(dt.UTC) + dt.timedelta(seconds=2)).strftime("%a, %d %b %Y %H:%M:%S GMT")
    keyed.server.faults.append(Fault(status=503, headers={"Retry-After": date}))
    started_s = time.monotonic()
    write(HttpSink(keyed.url, idempotent=True))
    assert 0.8 <= time.monotonic() - started_s < 10
    assert keyed.ids == IDS


def test_rows_go_on_where_they_were_told_to_wait(keyed: Collection) -> None:
    """Else an API that takes four requests at a time would never see a chunk of five."""
    sent = iter(range(1000))
    limit = Fault(status=429, headers={"Retry-After": "0"}, times=10**6, meets=lambda *_: next(sent) % 3 == 2)
    keyed.server.faults.append(limit)
    write(HttpSink(keyed.url, body="rows"))
    assert keyed.ids == IDS


def test_a_plain_sink_leaves_repeating_what_may_have_taken_effect_to_the_core(plain: Collection) -> None:
    plain.server.faults.append(Fault(status=503, headers={"Retry-After": "0"}))
    with pytest.raises(TargetFailedError, match="503"):
        write(HttpSink(plain.url))
    assert len(plain.server.requests) == 1


def test_waiting_is_bounded(plain: Collection) -> None:
    plain.server.faults.append(Fault(status=429, headers={"Retry-After": "86400"}))
    started_s = time.monotonic()
    with pytest.raises(TargetFailedError, match="429") as caught:
        write(HttpSink(plain.url, pacing=Pacing(max_wait_s=0.2)))
    assert caught.value.after_s == 86400
    assert time.monotonic() - started_s < 10
    assert len(plain.server.requests) == 1


def test_the_rate_holds_across_tasks(plain: Collection) -> None:
    sink = HttpSink(plain.url, pacing=Pacing(rows_per_s=10))
    started_s = time.monotonic()
    for batch_id in range(3):
        write(sink, chunk(batch_id=batch_id))  # 15 rows, of which 10 go at once
    assert 0.5 <= time.monotonic() - started_s < 10


def test_a_chunk_too_large_for_the_rate_says_so(plain: Collection) -> None:
    with pytest.raises(PermanentError, match=r"5 rows take 5 s at rows_per_s=1, more than max_wait_s=2"):
        write(HttpSink(plain.url, pacing=Pacing(rows_per_s=1, max_wait_s=2)))
    assert plain.server.requests == []


def test_an_open_breaker_asks_nothing_until_its_pause_is_over(plain: Collection) -> None:
    sink = HttpSink(plain.url, pacing=Pacing(breaker_failures=2, breaker_pause_s=0.5))
    plain.server.faults += [Fault(status=500), Fault(cut="before")]
    with pytest.raises(TargetFailedError):
        write(sink)
    with pytest.raises(OutcomeUnknownError):
        write(sink)
    with pytest.raises(NotNowError, match="failed 2 times in a row"):
        write(sink)
    assert len(plain.server.requests) == 2
    time.sleep(0.5)
    write(sink)
    assert plain.ids == IDS


def test_refused_rows_do_not_open_it(plain: Collection) -> None:
    sink = HttpSink(plain.url, pacing=Pacing(breaker_failures=1))
    plain.server.refuse = refuse_3
    assert isinstance(write(sink), Rejected)


# Connections.


@pytest.mark.parametrize("cut", ["before", "after"])
def test_no_answer_is_an_unknown_outcome_and_a_key_makes_it_harmless(keyed: Collection, cut: str) -> None:
    keyed.server.faults.append(Fault(cut=cut))
    sink = HttpSink(keyed.url, idempotent=True)
    with pytest.raises(OutcomeUnknownError, match="may or may not have taken effect: RemoteProtocolError"):
        write(sink)
    assert keyed.ids == (IDS if cut == "after" else [])
    write(sink)
    assert keyed.ids == IDS


def test_an_answer_that_is_late_is_an_unknown_outcome(keyed: Collection) -> None:
    keyed.server.faults.append(Fault(delay_s=1.0))
    with pytest.raises(OutcomeUnknownError, match="ReadTimeout"):
        write(HttpSink(keyed.url, timeout_s=0.2))


def test_nobody_listening() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/orders"
        with pytest.raises(TargetFailedError, match=r"cannot be reached, nothing was sent: .*Connection refused"):
            write(HttpSink(url))


def test_a_host_that_is_not_there() -> None:
    with pytest.raises(TargetFailedError, match=r"http://nowhere\.invalid/orders cannot be reached"):
        write(HttpSink("http://user:hunter2@nowhere.invalid/orders"))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "orders of a test")])
    now = dt.datetime.now(dt.UTC)
    local = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + dt.timedelta(hours=1))
    made = builder.add_extension(local, critical=False).sign(key, hashes.SHA256())
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    encoding, no_password = serialization.Encoding.PEM, serialization.NoEncryption()
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, no_password)
    path.write_bytes(private + made.public_bytes(encoding))
    return path


@pytest.fixture
def tls_target(tmp_path: Path, certificate: Path) -> Iterator[HttpTarget]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = HttpTarget(tmp_path / "rows.db", tls=context)
    server.start()
    yield server
    server.stop()


def test_a_certificate_is_checked(tls_target: HttpTarget, certificate: Path) -> None:
    url = f"{tls_target.url}/plain/orders"
    with pytest.raises(PermanentError, match=r"CERTIFICATE_VERIFY_FAILED.*pass verify="):
        write(HttpSink(url))
    write(HttpSink(url, verify=str(certificate)))
    write(HttpSink(url, verify=False))
    assert [row["id"] for row in tls_target.store.rows("orders")] == IDS * 2


def test_a_file_of_certificates_that_is_not_there() -> None:
    with pytest.raises(PermanentError, match="the client cannot be made: FileNotFoundError"):
        write(HttpSink("https://127.0.0.1/x", verify="/nowhere/ca.pem"))


# What cannot work.


@pytest.mark.parametrize(
    ("url", "arguments", "message"),
    [
        ("ftp://host/x", {}, "expected http://host/path"),
        ("https://", {}, "expected http://host/path"),
        ("https://host:port/x", {}, "expected http://host/path"),
        ("https://user:hunter2@host/a b?key=hunter2", {}, "^'https://host/a b' ?: expected"),
        ("https://host/x#frag", {}, "expected no '#'"),
        ("https://host/x", {"body": "xml"}, "expected one of 'json', 'jsonl', 'rows'"),
        ("https://host/x", {"method": "GET"}, "expected one of 'POST', 'PUT', 'PATCH'"),
        ("https://host/x", {"timeout_s": 0}, "timeout_s=0"),
        ("https://host/x", {"headers": {"a b": "x"}}, "header 'a b'"),
        ("https://host/x", {"headers": {"a": "x\r\nb: hunter2"}}, "header 'a': its value"),
        ("https://host/x", {"headers": {"Content-type": "x"}}, "other than Content-Type"),
        ("https://host/x", {"headers_from_env": {"idempotency-key": "X"}}, "header 'Idempotency-Key'"),
    ],
)
def test_arguments_that_cannot_work(url: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        HttpSink(url, **arguments)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lookup_url": "https://host/x"}, "expected {key} in it"),
        ({"lookup_url": "host/{key}"}, "expected http://host/path"),
        ({"lookup_url": "https://host/{key}", "body": "rows"}, "keys of rows"),
    ],
)
def test_lookups_that_cannot_work(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        HttpLookupSink("https://host/x", **arguments)


@pytest.mark.parametrize("arguments", [{"done": (200,)}, {"refused": (600,)}, {"done": (409,), "refused": (409,)}])
def test_statuses_that_cannot_work(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="status"):
        Statuses(**arguments)


def test_a_variable_that_is_not_set(plain: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORDERS_AUTH", raising=False)
    with pytest.raises(PermanentError, match="environment variable ORDERS_AUTH is not set"):
        write(HttpSink(plain.url, headers_from_env={"Authorization": "ORDERS_AUTH"}))


def test_a_variable_that_is_no_header(plain: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_AUTH", f"{SECRET}\r\nX-Other: 1")
    with pytest.raises(PermanentError, match="ORDERS_AUTH is no header value") as caught:
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


# By URL.


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("idempotnt=true", "unknown options idempotnt; known are body, method, idempotent"),
        ("body=json&body=rows", "options given twice: body"),
        ("idempotent=yes", "option idempotent='yes' is not what it takes"),
        ("rows_per_s=fast", "option rows_per_s='fast'"),
        ("headers_from_env=X-Key", "option headers_from_env='X-Key'"),
        ("section", "expected options as name=value"),
        ("body=xml", "body='xml'"),
    ],
)
def test_options_that_cannot_work(options: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        http_sink(f"https://user:hunter2@host/x?k=hunter2#{options}")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_it_is_an_entry_point(scheme: str) -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    value = project["entry-points"]["wal_sink.backends"][scheme]
    assert EntryPoint(scheme, value, "wal_sink.backends").load() is http_sink


def test_repr_shows_no_secret() -> None:
    sink = HttpSink("https://user:hunter2@host/x?key=hunter2", headers={"X-Key": "hunter2"})
    assert repr(sink) == "HttpSink('https://host/x', body='json', idempotent=False)"
    assert sink.describe() == repr(sink)


# Through the core.


def test_an_api_that_fails_now_and_then_gets_every_row_once(keyed: Collection) -> None:
    faults = [
        Fault(status=503),
        Fault(cut="after"),
        Fault(cut="before"),
        Fault(status=429, headers={"Retry-After": "0"}),
    ]
    keyed.server.faults += faults
    with FakeQuery.over(HttpSink(keyed.url, idempotent=True)) as query:
        query.batch(pa.table({"id": IDS}))
        query.batch(pa.table({"id": [6, 7]}))
    assert keyed.ids == [*IDS, 6, 7]
    assert not any(fault.times for fault in faults)


def test_a_lookup_spares_what_an_answer_got_lost_for(plain: Collection) -> None:
    plain.server.faults += [Fault(cut="after")]
    sink = HttpLookupSink(plain.url, lookup_url=f"{plain.url}/chunks/{{key}}")
    with FakeQuery.over(sink) as query:
        query.batch(pa.table({"id": [1, 2]}))
    assert plain.ids == [1, 2]
    assert [seen.method for seen in plain.server.requests] == ["POST", "GET"]


def test_without_a_lookup_or_keys_it_repeats(plain: Collection) -> None:
    plain.server.faults += [Fault(cut="after")]
    with FakeQuery.over(HttpSink(plain.url)) as query:
        query.batch(pa.table({"id": [1, 2]}))
    assert plain.ids == [1, 2, 1, 2]


def test_what_is_refused_stops_the_delivery_with_the_reason(keyed: Collection) -> None:
    keyed.server.refuse = refuse_3
    with FakeQuery.over(Delivery(HttpSink(keyed.url, body="rows", idempotent=True))) as query:
        with pytest.raises(DeliveryError, match="id 3 is refused"):
            query.batch(pa.table({"id": IDS}))
        keyed.server.forget()
        query.restart()
    assert sorted(keyed.ids) == IDS


# Killed processes.

WRITER = textwrap.dedent(
    """
    import sys
    import pyarrow as pa
    from wal_sink.sink import SinkContext
    from wal_sink.testing.bench import chunks_of
    from wal_sink_backends.http import http_sink

    url, done = sys.argv[1], sys.argv[2]
    sink = http_sink(url)
    sink.open(SinkContext(wal_id="wal", sink="default", term=1, batch_id=0, columns=("id",), on_executor=True))
    start = int(open(done).read() or 0)
    pa.table({"id": [1]})
    print("ready", flush=True)
    for batch in range(start, 10**6):
        ids = range(batch * 20, batch * 20 + 20)
        for chunk in chunks_of(pa.table({"id": ids}), batch_id=batch, chunk_rows=5):
            assert sink.write(chunk) is None
        open(done, "w").write(str(batch + 1))
    """
)


@pytest.mark.parametrize("body", ["json", "rows"])
def test_a_writer_killed_at_any_moment_leaves_every_row_once(keyed: Collection, tmp_path: Path, body: str) -> None:
    seed = random.randrange(10**6)
    moments = random.Random(seed)
    done = tmp_path / "done"
    done.write_text("0")
    for number in range(3):
        arguments = (f"{keyed.url}#idempotent=true&body={body}", str(done))
        with Child.python(WRITER, *arguments, log=tmp_path / f"{number}.log") as writer:
            writer.wait_for_output("ready")
            time.sleep(moments.uniform(0.02, 0.3))
            assert writer.running, writer.output
            writer.kill()
    ids = keyed.ids
    assert len(ids) == len(set(ids)), f"seed {seed}"
    assert set(range(int(done.read_text() or 0) * 20)) <= set(ids), f"seed {seed}"
    assert ids, "the writers were killed before they wrote"


def test_an_api_killed_in_mid_chunk_and_started_again_has_every_row_once(tmp_path: Path) -> None:
    """The API's process is killed again and again while the core delivers to it."""
    program = CHECKOUT / "tests" / "contract" / "http_target.py"
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    database = tmp_path / "rows.db"

    def serve(number: int) -> Child:
        return Child.python(program, str(database), str(port), log=tmp_path / f"{number}.log")

    def restart(at: int, sink: HttpSink, some: Chunk, server: Child) -> Child:
        server.kill()
        with pytest.raises((TargetFailedError, OutcomeUnknownError)):
            sink.write(some)
        server = serve(at)
        server.wait_for_output("serving")
        return server

    sink = http_sink(f"http://127.0.0.1:{port}/keys/orders#idempotent=true&body=rows")
    server = serve(0)
    try:
        server.wait_for_output("serving")
        with opened(sink):
            for batch in range(30):
                some = chunk(*range(batch * 5, batch * 5 + 5), batch_id=batch)
                if batch % 10 == 5:
                    server = restart(batch, sink, some, server)
                sink.write(some)
                sink.write(some)
    finally:
        server.kill()
    with contextlib.closing(sqlite3.connect(database)) as connection:
        rows = [json.loads(row)["id"] for (row,) in connection.execute("SELECT row FROM rows")]
    assert rows == list(range(150))
