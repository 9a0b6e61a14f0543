"""The requests of `HttpSink`, and its conclusions from answers."""

from __future__ import annotations

import logging
import socket
from dataclasses import replace
from typing import Any

import pytest

from tests.house.sinks import Rejected
from tests.support.http_collection import CONTEXT, SECRET, Collection, chunk, opened, write
from tests.support.servers.http_target import Fault
from wal_sink.errors import OutcomeUnknownError, PermanentError
from wal_sink_backends.http.sink import HttpLookupSink, HttpSink, Statuses, TargetFailedError

# Requests.


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
    assert seen.key == CONTEXT.own_key(chunk(1, 2).key)
    assert keyed.ids == [1, 2]


def test_rows_go_one_by_one_under_their_own_keys(keyed: Collection) -> None:
    write(HttpSink(keyed.url, body="rows", method="PUT", idempotency_header="X-Once"), chunk(1, 2))
    seen = keyed.server.requests
    assert [one.body for one in seen] == [b'{"id":1}', b'{"id":2}']
    assert [one.headers["x-once"] for one in seen] == [*map(CONTEXT.own_key, chunk(1, 2).row_keys())]
    assert {one.method for one in seen} == {"PUT"}


def test_two_sinks_of_one_wal_send_the_same_rows_under_two_keys(keyed: Collection) -> None:
    sinks = [HttpSink(f"{keyed.url}?site={site}&token={{key}}", idempotent=True) for site in (1, 2)]
    for sink, name in zip(sinks, ("one", "two"), strict=True):
        sink.open(replace(CONTEXT, sink=name))
        sink.write(chunk(1, 2))
        sink.close()
    assert keyed.ids == [1, 2, 1, 2]
    keys = [seen.key for seen in keyed.server.requests]
    assert [seen.path.partition("&token=")[2] for seen in keyed.server.requests] == keys


@pytest.mark.parametrize("failure", [Fault(status=503), Fault(cut="after")])
@pytest.mark.parametrize("at_most_once", [False, True])
def test_a_row_that_fails_goes_again_and_those_before_it_do_not(
    plain: Collection, failure: Fault, *, at_most_once: bool
) -> None:
    plain.server.faults.append(replace(failure, meets=lambda _, body: b"3" in body))
    sink = HttpSink(plain.url, body="rows")
    sink.open(replace(CONTEXT, at_most_once=at_most_once))
    if at_most_once:
        with pytest.raises((TargetFailedError, OutcomeUnknownError)):
            sink.write(chunk())
    else:
        sink.write(chunk())
    sink.close()
    sent = [int(seen.body[6:-1]) for seen in plain.server.requests]
    assert sent == ([1, 2, 3] if at_most_once else [1, 2, 3, 3, 4, 5])


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


# Answers of the API.


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 507, 599])
def test_statuses_that_may_pass(plain: Collection, status: int) -> None:
    plain.server.faults.append(Fault(status=status, body="not now"))
    with pytest.raises(
        TargetFailedError, match=rf"batch 0, chunk {chunk().key}: POST http.* answered {status}.*: not now"
    ):
        write(HttpSink(plain.url))


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (401, "check the credentials"),
        (403, "check the credentials"),
        (404, "check URL and method"),
        (451, "Correct the request or"),
    ],
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
        PermanentError, match=r"redirects to http.*/plain/elsewhere, but redirects are not followed"
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
    with pytest.raises(PermanentError, match=r"redirects to \S*/elsewhere, but redirects") as caught:
        write(HttpSink(plain.url))
    assert "abcdef" not in str(caught.value)


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


def test_an_answer_that_cannot_be_decoded_is_an_unknown_outcome(plain: Collection) -> None:
    plain.server.faults.append(Fault(status=200, body="no gzip", headers={"Content-Encoding": "gzip"}))
    with pytest.raises(
        OutcomeUnknownError, match=r"could not be read \(DecodingError.*It is not known whether the request took effect"
    ):
        write(HttpSink(plain.url))


def test_a_variable_that_is_no_header(plain: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_AUTH", f"{SECRET}\r\nX-Other: 1")
    with pytest.raises(PermanentError, match="ORDERS_AUTH is not a valid header value") as caught:
        write(HttpSink(plain.url, headers_from_env={"Authorization": "ORDERS_AUTH"}))
    assert SECRET not in str(caught.value)


def test_a_redirect_that_echoes_a_header_shows_it_not(plain: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_AUTH", f"Bearer {SECRET}")
    plain.server.faults.append(Fault(status=302, headers={"Location": f"/for/{SECRET}/x"}))
    with pytest.raises(PermanentError, match=r"redirects to /for/\*\*\*/x, but"):
        write(HttpSink(plain.url, headers_from_env={"Authorization": "ORDERS_AUTH"}))


def test_the_secrets_of_a_lookup_are_masked_too(plain: Collection) -> None:
    plain.server.faults.append(Fault(status=500, body="abcdef it was"))
    sink = HttpLookupSink(plain.url, lookup_url=f"{plain.url}/{{key}}?token=abcdef")
    with opened(sink), pytest.raises(TargetFailedError, match=r"\*\*\* it was"):
        sink.write(chunk())
