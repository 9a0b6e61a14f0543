"""S3 as it is on a bad day: storms of SlowDown, lost answers, credentials that expire; and buckets of other kinds.

moto answers, and in its place what S3 would say; versioned and encrypted buckets are moto's own. moto has no directory
buckets and no sessions that expire.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.house.kit import served_sink
from tests.house.log import Log, claim, paths
from tests.house.protocol import Run
from tests.house.sinks import Chunk, Sink
from tests.house.stores import (
    MeasuredStore,
    MemoryStore,
    ObjectExists,
    ObjectMissing,
    S3Store,
    StoreSpec,
    create_once,
    open_store,
    probe,
)
from tests.house.support import SYSTEM
from tests.support.servers.s3_server import Fault, S3Server
from wal_sink.errors import ConfigError, StoreError
from wal_sink.settings import Delivery, Retry, Settings
from wal_sink.stores import measured
from wal_sink.stores.measured import SlowRequests
from wal_sink.testing import FakeQuery

new_id = SYSTEM.new_id
pytestmark = [pytest.mark.s3, pytest.mark.no_cover]

BATCHES = 4
SLOW_DOWN = Fault(503, "SlowDown")


@pytest.fixture
def server(s3_server: S3Server) -> Iterator[S3Server]:
    yield s3_server
    s3_server.fault = None


@pytest.fixture
def spec(server: S3Server, s3_url: str) -> StoreSpec:
    return StoreSpec(s3_url, server.storage_options)


@dataclass
class Weather:
    """Random faults while a storm lasts; each of `kinds` equally often.

    A storm begins with the first request after `begin`, lasts `LASTS_S`, and has `FEWEST` faults at least.
    """

    LASTS_S = 10.0
    FEWEST = 5

    kinds: tuple[Fault, ...]
    share: float
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    until_s: float = 0.0
    seen: int = 0

    def begin(self) -> None:
        self.until_s = math.inf

    def __call__(self, *_: object) -> Fault | None:
        if self.until_s == math.inf:
            self.until_s = time.monotonic() + self.LASTS_S
        is_over = time.monotonic() >= self.until_s and (self.until_s == 0.0 or self.seen >= self.FEWEST)
        if is_over or self.chance.random() >= self.share:
            return None
        self.seen += 1
        return self.chance.choice(self.kinds)


def rows_of(batch_id: int, _end: int) -> list[pa.Table]:
    return [pa.table({"id": [batch_id * 10 + row for row in range(4)]})]


class Keeper(Sink):
    """A target that ignores a key it has seen."""

    idempotent = True

    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = {}
        self.calls = 0

    def write(self, chunk: Chunk) -> None:
        self.calls += 1
        self.rows[chunk.key] = [int(row) for row in chunk.table["id"].to_numpy()]


# Storms.


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("kinds", "share"),
    [((SLOW_DOWN,), 0.9), ((SLOW_DOWN, Fault(503, "SlowDown", done=True)), 0.6)],
    ids=["refused", "and lost answers"],
)
def test_a_storm_is_outlasted_while_staging_and_committing(
    server: S3Server, spec: StoreSpec, kinds: tuple[Fault, ...], share: float
) -> None:
    keeper, checkpoint = Keeper(), MemoryStore(StoreSpec(f"memory://{new_id()}"))
    run = Run(open_store(spec), checkpoint, Settings(chunk_rows=2))
    run.open([served_sink("default", keeper, Delivery(keeper, where="driver"), run.log)])
    run.become_stager()
    server.fault = weather = Weather(kinds, share)
    for batch_id in FakeQuery(checkpoint, rows_of).batches(run, BATCHES):
        run.deliver_all()
        if batch_id == 1:
            weather.begin()
    run.deliver_all()
    assert weather.seen >= weather.FEWEST
    expected = [batch * 10 + row for batch in range(BATCHES) for row in range(4)]
    assert sorted(row for rows in keeper.rows.values() for row in rows) == expected
    assert keeper.calls == 2 * BATCHES, "a storm repeats nothing: the target was sent each chunk once"


@dataclass
class Slowness:
    """Requests that take long: `takes_s` gets the number of each request, from 1."""

    takes_s: Callable[[int], float]
    counts_from_s: float
    """The time from which a request counts as slow. Others may be slow on a busy machine."""
    told: int
    """The number of warnings that it is worth."""
    seen: int = 0

    def __call__(self, *_: object) -> None:
        self.seen += 1
        time.sleep(self.takes_s(self.seen))


def one_in_fifty(number: int) -> float:
    return 5.0 if number % 50 == 20 else 0.0


def grown_to_a_second(number: int) -> float:
    return min(1.0, number / 15) if number < 25 else 0.0


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "slowness", [Slowness(one_in_fifty, 4.0, 0), Slowness(grown_to_a_second, 0.9, 1)], ids=["1 in 50", "growing"]
)
def test_a_slow_store_costs_no_attempt_and_is_told_once(
    server: S3Server,
    spec: StoreSpec,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    slowness: Slowness,
) -> None:
    monkeypatch.setattr(measured, "SLOW_S", slowness.counts_from_s)
    batches = 16
    keeper, checkpoint = Keeper(), MemoryStore(StoreSpec(f"memory://{new_id()}"))
    store = open_store(spec)
    run = Run(MeasuredStore(store, slow=SlowRequests(store.root)), checkpoint, Settings(chunk_rows=2))
    run.open([served_sink("default", keeper, Delivery(keeper, where="driver", retry=Retry(attempts=1)), run.log)])
    run.become_stager()
    server.fault = slowness
    for _ in FakeQuery(checkpoint, rows_of).batches(run, batches):
        run.deliver_all()
    run.deliver_all()
    assert 80 < slowness.seen < 120, "the store is fast again at the end"
    assert (len(keeper.rows), keeper.calls) == (2 * batches, 2 * batches)
    told = [record.getMessage() for record in caplog.records if record.name == measured.__name__]
    assert [" is slow: " in message for message in told] == [True] * slowness.told


def test_a_storm_that_does_not_end_is_told_in_time_and_in_words(server: S3Server, spec: StoreSpec) -> None:
    paused: list[float] = []
    once = {"config_kwargs": {"retries": {"mode": "standard", "total_max_attempts": 1}}}  # botocore pauses too
    store = S3Store(StoreSpec(spec.url, {**spec.options, **once}), runtime=replace(SYSTEM, sleep_s=paused.append))
    server.fault = lambda *_: SLOW_DOWN
    with pytest.raises(StoreError, match=r"SlowDown .*S3 limited the request rate for half a minute"):
        store.create("a", b"x")
    assert 15 < sum(paused) < 31
    assert len(paused) == 6


def test_a_store_without_conditional_writes_is_told_as_such(server: S3Server, spec: StoreSpec) -> None:
    server.fault = lambda *_: Fault(501, "NotImplemented")
    with pytest.raises(StoreError, match=r"NotImplemented .*A WAL needs conditional writes \(If-None-Match\)"):
        S3Store(spec).create("a", b"x")


# Refused requests: which one, for which key, and why it may be so although the right is there.


_ALL = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket", "s3:AbortMultipartUpload")


@pytest.mark.parametrize("code", ["AccessDenied", "403"])
@pytest.mark.parametrize(
    ("request_it", "needs", "named", "absent"),
    [
        (lambda store: store.create("terms/1.json", b"x"), "s3:PutObject", "/terms/1.json", False),
        (lambda store: store.read("terms/1.json"), "s3:GetObject", "/terms/1.json", True),
        (lambda store: store.delete(["terms/1.json"]), "s3:DeleteObject", "/", False),
        (lambda store: store.request("list_parts", "a", UploadId="u"), "s3:ListMultipartUploadParts", "/a", False),
    ],
)
def test_a_refused_request_names_its_right_and_its_key_and_no_other_right(
    server: S3Server,
    spec: StoreSpec,
    code: str,
    *,
    request_it: Callable[[S3Store], object],
    needs: str,
    named: str,
    absent: bool,
) -> None:
    server.fault = lambda *_: Fault(403, code)
    with pytest.raises(StoreError) as refused:
        request_it(S3Store(spec))
    text = str(refused.value)
    assert f"this request needs {needs}: grant it on arn:aws:s3:::{spec.location}{named}" in text
    assert "If the credentials have this right, something limits it: a condition of their policy" in text
    others = {other for other in _ALL if other != needs and other in text}
    assert others == ({"s3:ListBucket"} if absent else set())


def test_a_refused_listing_names_the_prefix_and_a_condition_on_it(server: S3Server, spec: StoreSpec) -> None:
    """The incident: s3:ListBucket was there, under a condition on another prefix. No multipart right is needed."""
    server.fault = lambda *_: Fault(403, "AccessDenied")
    with pytest.raises(StoreError) as refused:
        S3Store(spec).list("terms")
    text, (bucket, _, key) = str(refused.value), spec.location.partition("/")
    assert (
        f"this request needs s3:ListBucket: grant it on the bucket {bucket}, without a condition on s3:prefix" in text
    )
    assert f"(it was '{key}/terms/' here)" in text
    assert "that this prefix does not meet" in text
    assert "Multipart" not in text


def test_an_object_that_may_not_be_deleted_is_named(spec: StoreSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    store = S3Store(spec)
    store.create("a", b"x")
    answer = {"Errors": [{"Key": f"{spec.location.partition('/')[2]}/a", "Code": "AccessDenied"}]}
    monkeypatch.setattr(S3Store, "_ask", lambda *_: answer)  # moto has no policies
    with pytest.raises(StoreError, match=r"needs s3:DeleteObject: grant it on arn:aws:s3:::.*/a\. If the credentials"):
        store.delete(["a"])
    answer["Errors"][0]["Code"] = "InternalError"
    with pytest.raises(StoreError, match=r"InternalError; check the rights$"):
        store.delete(["a"])


# Answers that are lost.


@pytest.mark.parametrize("fault", [Fault(503, "SlowDown", done=True), Fault(500, "InternalError", done=True)])
def test_a_create_whose_answer_was_lost_is_known_as_ours(server: S3Server, spec: StoreSpec, fault: Fault) -> None:
    store, faults = open_store(spec), iter([fault])
    server.fault = lambda method, *_: next(faults, None) if method == "PUT" else None
    assert create_once(store, "a", b"mine", runtime=SYSTEM)
    assert not create_once(store, "a", b"another's", runtime=SYSTEM)
    assert store.read("a") == b"mine"


def test_a_term_whose_claim_was_answered_with_a_storm_is_held(server: S3Server, spec: StoreSpec) -> None:
    """Else the holder would take itself for superseded, and claim the next."""
    log, lost = Log(open_store(spec), SYSTEM, "run"), iter([Fault(503, "SlowDown", done=True)] * 3)
    server.fault = lambda method, *_: next(lost, None) if method == "PUT" else None
    assert claim(log, paths.STAGER_ROLE).number == 1
    assert log.numbers(paths.terms(paths.STAGER_ROLE)) == [1]


# Credentials that expire.


class Gate:
    """Answers `ExpiredToken` to every session's token but one."""

    def __init__(self, valid: str) -> None:
        self.valid = valid
        self.refused = 0

    def __call__(self, _method: str, _path: str, environ: Mapping[str, Any]) -> Fault | None:
        if environ.get("HTTP_X_AMZ_SECURITY_TOKEN") == self.valid:
            return None
        self.refused += 1
        return Fault(400, "ExpiredToken")


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Write a profile's session token into the shared file, as a tool that renews it does."""
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))

    def write(token: str) -> None:
        keys = "aws_access_key_id=Owl\naws_secret_access_key=feathers"
        file.write_text(f"[night]\n{keys}\naws_session_token={token}\n")

    return write


def by_profile(server: S3Server, url: str) -> StoreSpec:
    options = {name: value for name, value in server.storage_options.items() if name not in {"key", "secret"}}
    return StoreSpec(url, {**options, "profile": "night"})


def test_credentials_that_are_renewed_in_mid_run_are_taken(
    server: S3Server, s3_url: str, profile: Callable[[str], None]
) -> None:
    profile("first")
    server.fault = gate = Gate("first")
    store = open_store(by_profile(server, s3_url))
    store.create("a", b"x")
    gate.valid = "second"
    with pytest.raises(StoreError, match=r"ExpiredToken .*their source has no new credentials"):
        store.create("b", b"x")
    profile("second")
    store.create("b", b"x")
    assert store.list("") == ["a", "b"]
    refused = gate.refused
    assert store.read("a") == b"x"
    assert gate.refused == refused, "once renewed, no request uses the old ones"


def test_many_threads_renew_once(server: S3Server, s3_url: str, profile: Callable[[str], None]) -> None:
    profile("first")
    server.fault = gate = Gate("first")
    store = open_store(by_profile(server, s3_url))
    store.create("a", b"x")
    gate.valid = "second"
    profile("second")
    read: list[bytes] = []
    threads = [threading.Thread(target=lambda: read.append(store.read("a"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert read == [b"x"] * 8


def test_given_credentials_that_expired_are_told_as_such(server: S3Server, s3_url: str) -> None:
    server.fault = Gate("another")
    store = open_store(StoreSpec(s3_url, {**server.storage_options, "token": "first-session"}))
    with server.counting() as requests, pytest.raises(StoreError, match=r"ExpiredToken .*with new ones") as caught:
        store.read("a")
    assert len(requests) == 1
    assert "first-session" not in str(caught.value)


# Buckets of other kinds.


@pytest.fixture
def versioned(server: S3Server) -> Iterator[StoreSpec]:
    client, bucket = server.client(), "wal-sink-versioned"
    client.create_bucket(Bucket=bucket)
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    yield StoreSpec(f"s3://{bucket}/wal", server.storage_options)
    versions = client.list_object_versions(Bucket=bucket)
    for one in (*versions.get("Versions", ()), *versions.get("DeleteMarkers", ())):
        client.delete_object(Bucket=bucket, Key=one["Key"], VersionId=one["VersionId"])
    client.delete_bucket(Bucket=bucket)


def test_in_a_versioned_bucket_deleted_objects_are_absent_and_their_paths_free(versioned: StoreSpec) -> None:
    store = open_store(versioned)
    probe(store, runtime=SYSTEM, single_writer=False)
    store.create("a/1", b"first")
    with pytest.raises(ObjectExists):
        store.create("a/1", b"second")
    store.delete(["a/1", "a/never"])
    with pytest.raises(ObjectMissing):
        store.read("a/1")
    assert store.list("a") == store.list("", recursive=True) == []
    store.create("a/1", b"third")
    assert store.read("a/1") == b"third"


def test_a_wal_in_a_versioned_bucket_is_delivered_and_collected(versioned: StoreSpec) -> None:
    keeper, checkpoint = Keeper(), MemoryStore(StoreSpec(f"memory://{new_id()}"))
    run = Run(open_store(versioned), checkpoint, Settings(chunk_rows=2, retention_batches=100))
    run.open([served_sink("default", keeper, Delivery(keeper, where="driver"), run.log)])
    run.become_stager()
    for _ in FakeQuery(checkpoint, rows_of).batches(run, 120):
        run.deliver_all()
    assert len(keeper.rows) == 240
    assert run.log.low_water() > 0
    again = Run(open_store(versioned), checkpoint, Settings(chunk_rows=2, retention_batches=100))
    again.open([served_sink("default", keeper, Delivery(keeper, where="driver"), again.log)])
    again.deliver_all()
    assert keeper.calls == 240


def test_an_encrypted_bucket_whose_etags_are_no_digests(server: S3Server, s3_url: str) -> None:
    """With KMS they are not the MD5 of the body; nothing compares them."""
    client = server.client()
    rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": "a-key"}}
    client.put_bucket_encryption(Bucket=server.bucket, ServerSideEncryptionConfiguration={"Rules": [rule]})
    try:
        store = open_store(StoreSpec(s3_url, server.storage_options))
        probe(store, runtime=SYSTEM, single_writer=False)
        assert create_once(store, "a", b"mine", runtime=SYSTEM)
        with store.segment("s") as stream:
            stream.write(b"x" * 1000)
            stream.commit()
        assert store.read("s") == b"x" * 1000
    finally:
        client.delete_bucket_encryption(Bucket=server.bucket)


@pytest.mark.parametrize("bucket", ["lake--use1-az4--x-s3", "lake--use1-az4--xa-s3"])
def test_a_directory_bucket_is_refused_in_words(server: S3Server, bucket: str) -> None:
    with server.counting() as requests, pytest.raises(ConfigError, match=r"directory bucket .*general purpose bucket"):
        open_store(StoreSpec(f"s3://{bucket}/wal", server.storage_options))
    assert requests == []
