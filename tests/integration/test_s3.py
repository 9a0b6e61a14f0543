"""A WAL on S3 (moto's server): end to end, what it costs in requests, no secret anywhere, failures bounded in time."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.processes import Child
from tests.support.servers.ports import listening
from tests.support.streams import SESSION, Home
from tests.support.waiting import wait_until
from wal_sink import Delivery, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from tests.support.servers.s3_server import S3Server

pytestmark = [pytest.mark.spark, pytest.mark.s3]

SECRET = "test-secret-key"  # noqa: S105 - the dummy of tests.support.servers.s3_server
KEY = "test-access-key"


@pytest.fixture
def place(tmp_path: Path, s3_url: str) -> Home:
    return Home(tmp_path, wal_url=s3_url)


def objects_below(server: S3Server, url: str) -> dict[str, bytes]:
    prefix = url.removeprefix(f"s3://{server.bucket}/")
    client = server.client()
    found = client.list_objects_v2(Bucket=server.bucket, Prefix=prefix + "/").get("Contents", [])
    return {entry["Key"]: client.get_object(Bucket=server.bucket, Key=entry["Key"])["Body"].read() for entry in found}


@pytest.mark.parametrize("where", ["driver", "executors"])
def test_rows_travel_through_s3_and_no_secret_stays_there(
    spark: SparkSession, place: Home, s3_server: S3Server, where: Any, caplog: pytest.LogCaptureFixture
) -> None:
    place.feed.add(range(10), range(10, 20))
    options = s3_server.storage_options
    with caplog.at_level(logging.DEBUG, "wal_sink"):
        place.run(spark, Delivery(place.lines, where=where), storage_options=options)
        place.feed.add(range(20, 30))
        place.run(spark, Delivery(place.lines, where=where), storage_options=options)
    assert (place.lines.ids(), place.lines.repeats()) == (list(range(30)), 0)
    objects = objects_below(s3_server, place.wal_url)
    assert any(name.endswith(".parquet") for name in objects)
    assert not [name for name, data in objects.items() if SECRET.encode() in data or KEY.encode() in data]
    assert_hidden(caplog.text, repr(place.sink(storage_options=options)))


def assert_hidden(*texts: str) -> None:
    for text in texts:
        assert SECRET not in text
        assert KEY not in text


# --- what it costs


def of_steady_batch(spark: SparkSession, place: Home, server: S3Server, to: Delivery) -> list[str]:
    """The requests of the last batch of a run of four, from the arrival of its rows until its marker is there."""
    sink = place.sink(to, storage_options=server.storage_options)
    place.feed.add([0])
    query = sink.start(place.feed.stream(spark).repartition(1).writeStream)
    query.processAllAvailable()
    place.feed.add([1], [2])
    query.processAllAvailable()
    settle(server, 3)
    with server.counting() as seen:
        place.feed.add([3])
        query.processAllAvailable()
        settle(server, 4)
    sink.close()
    assert place.lines.ids() == [0, 1, 2, 3]
    return seen


def settle(server: S3Server, markers: int) -> None:
    """Wait until so many markers were created and no more requests come."""
    wait_until(lambda: sum("/markers/" in line for line in puts(server.requests)) >= markers, f"{markers} markers")
    seen = -1
    while seen != len(server.requests):
        seen = len(server.requests)
        time.sleep(0.3)


def puts(requests: Iterable[str]) -> list[str]:
    return [line for line in requests if line.startswith("PUT ")]


@pytest.mark.parametrize("where", ["auto", "executors"])
def test_a_steady_batch_of_one_segment_and_one_chunk_costs_six_requests_and_no_listing(
    spark: SparkSession, place: Home, s3_server: S3Server, where: Any
) -> None:
    s3_server.requests.clear()
    requests = of_steady_batch(spark, place, s3_server, Delivery(place.lines, where=where))
    kinds = [f"{line.split()[0]} {kind_of(line)}" for line in requests]
    assert kinds == ["PUT segment", "PUT manifest", "GET term", "PUT release", "GET segment", "PUT marker"], requests


def kind_of(request: str) -> str:
    path = request.split()[1].partition("?")[0]
    names = {
        ".parquet": "segment",
        "/manifest-": "manifest",
        "/release": "release",
        "/terms/": "term",
        "/markers/": "marker",
    }
    return next((name for text, name in names.items() if text in path), path)


# --- secrets


LEAKS = (
    SESSION.format(master="local[2]")
    + """
import sys
from pathlib import Path
from tests.support.streams import Home
from wal_sink import Delivery
import logging
logging.basicConfig(level=logging.DEBUG)
logging.getLogger("py4j").setLevel(logging.WARNING)
for name in ("botocore", "aiobotocore", "s3fs", "fsspec"):
    logging.getLogger(name).setLevel(logging.WARNING)
place = Home(Path(sys.argv[1]), wal_url=sys.argv[2])
options = {"key": "test-access-key", "secret": "test-secret-key", "endpoint_url": sys.argv[3],
           "client_kwargs": {"region_name": "us-east-1"}}
place.run(spark, Delivery(place.lines, where="executors"), storage_options=options)
assert place.lines.ids() == list(range(10))
spark.stop()
"""
)


def test_no_secret_reaches_sparks_event_log_its_ui_or_any_log(place: Home, s3_server: S3Server) -> None:
    place.feed.add(range(10))
    events = place.root / "events"
    events.mkdir()
    program = LEAKS.replace(
        ".config(map=SPARK_CONF)",
        f'.config(map={{**SPARK_CONF, "spark.eventLog.enabled": "true", "spark.eventLog.dir": "{events.as_uri()}", '
        '"spark.eventLog.compress": "false"})',
    )
    log = place.root / "log"
    with Child.python(program, place.root, place.wal_url, s3_server.endpoint, log=log) as child:
        child.succeed()
        assert_hidden(child.output)
    text = "".join(file.read_text() for file in events.rglob("*") if file.is_file() and file.suffix != ".crc")
    assert f"wal-sink {place.wal_url} batch 0: stage attempt" in text
    assert f"wal-sink {place.wal_url} batch 0: deliver to default" in text
    assert_hidden(text)


# --- failures


@pytest.mark.parametrize(
    ("changed", "url", "said"),
    [
        ({"endpoint_url": "http://127.0.0.1:9"}, None, "nothing answers at this endpoint"),
        ({}, "s3://no-such-bucket-here/wal", "this bucket does not exist"),
    ],
)
def test_a_store_that_is_not_there_is_refused_at_once(
    place: Home, s3_server: S3Server, changed: dict[str, Any], url: str | None, said: str
) -> None:
    assert said in refusal(Home(place.root, wal_url=url or place.wal_url), {**s3_server.storage_options, **changed})


def test_an_endpoint_that_never_answers_is_given_up(place: Home, s3_server: S3Server) -> None:
    with listening() as mute:
        changed = {
            "endpoint_url": f"http://127.0.0.1:{mute.getsockname()[1]}",
            "config_kwargs": {"read_timeout": 0.5, "retries": {"mode": "standard", "total_max_attempts": 2}},
        }
        assert "did not answer in time" in refusal(place, {**s3_server.storage_options, **changed})


def test_wrong_credentials_are_refused_at_once(
    place: Home, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, s3_server, "InvalidAccessKeyId", path="/")
    told = refusal(place, s3_server.storage_options)
    assert "the credentials in storage_options are invalid or expired" in told


def refusal(place: Home, options: dict[str, Any]) -> str:
    """Why a WAL cannot be opened: said within half a minute, with the address and without secrets."""
    started_s = time.monotonic()
    with pytest.raises(StoreError) as caught, place.sink(storage_options=options):
        pass
    assert time.monotonic() - started_s < 30
    assert place.wal_url in str(caught.value)
    assert_hidden(str(caught.value))
    return str(caught.value)


def test_rights_that_are_taken_away_stop_the_query_and_lose_nothing(
    spark: SparkSession, place: Home, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.feed.add(range(5))
    place.run(spark, storage_options=s3_server.storage_options)
    place.feed.add(range(5, 10))
    with monkeypatch.context() as patch:
        refuse(patch, s3_server, "AccessDenied", path="/batches/")
        with pytest.raises(StoreError, match=r"batch 1: stage attempt 1.*AccessDenied.*s3:PutObject"):
            place.run(spark, storage_options=s3_server.storage_options)
    place.run(spark, storage_options=s3_server.storage_options)
    assert (place.lines.ids(), place.lines.repeats()) == (list(range(10)), 0)


def refuse(patch: pytest.MonkeyPatch, server: S3Server, code: str, *, path: str) -> None:
    """From now on the server refuses every PUT of an object with `path` in its name, as S3 would."""
    running = server._server._server
    assert running is not None
    answered = running.app
    body = f"<Error><Code>{code}</Code><Message>refused by the test</Message></Error>".encode()

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "PUT" or path not in environ["PATH_INFO"]:
            return answered(environ, start_response)
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start_response("403 Forbidden", [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
        return [body]

    patch.setattr(running, "app", answer)
