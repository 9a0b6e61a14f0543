"""`TwoPhaseFilesSink` on S3: a multipart upload per segment, whichever process completes it, in every state."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from tests.house.kit import Held, chunks_of, commit, opened, prepare, three_batches
from tests.house.stores import S3Store
from tests.support.programs.two_phase_lives import live, place_of
from tests.support.servers.s3_server import Fault, S3Server
from wal_sink import Chunk, DeliveryError, HandleGoneError, PermanentError, StoreError
from wal_sink.stores.s3 import S3Error
from wal_sink.testing import query_into
from wal_sink.testing.contract.calls import attempt_at
from wal_sink_backends import TwoPhaseFilesSink
from wal_sink_backends.files import s3 as files_s3

pytestmark = pytest.mark.s3

PART_BYTES = 5 << 20
TEMPLATE = "{batch_id}-{partition}-{file_index}.{ext}"
TABLE = three_batches()[0]
CHUNKS = chunks_of(TABLE)
LARGE = chunks_of(pa.table({"id": range(12), "pad": ["x" * (1 << 20)] * 12}), chunk_rows=1)
"""Three parts of 5 MiB, the last smaller."""


class Prefix:
    """A prefix of the bucket, and a sink into it."""

    def __init__(self, server: S3Server, url: str) -> None:
        self.server = server
        self.url = url
        self.key = url.partition(f"{server.bucket}/")[2]

    def sink(self, **arguments: Any) -> TwoPhaseFilesSink:
        given = {"name_template": TEMPLATE, "storage_options": self.server.storage_options, "part_bytes": PART_BYTES}
        return TwoPhaseFilesSink(self.url, **{**given, **arguments})

    @contextmanager
    def opened(self, **arguments: Any) -> Iterator[TwoPhaseFilesSink]:
        sink = self.sink(**arguments)
        with opened(sink, CHUNKS[0]):
            yield sink

    def prepared(self, chunks: list[Chunk] = CHUNKS) -> Held:
        with self.opened() as sink:
            return prepare(sink, chunks)

    def committed(self, held: Held) -> None:
        with self.opened() as sink:
            commit(sink, held)

    def aborted(self, held: Held) -> None:
        with self.opened() as sink:
            sink.abort(held.transaction, held.token)

    def objects(self) -> dict[str, bytes]:
        everything = self.server.objects().items()
        return {name.removeprefix(f"{self.key}/"): data for name, data in everything if name.startswith(f"{self.key}/")}

    def rows(self) -> list[Any]:
        return [json.loads(line) for data in self.objects().values() for line in data.splitlines()]

    def uploads(self) -> list[tuple[str, str]]:
        return [found for found in self.server.uploads(f"{self.key}/") if found[0].startswith(f"{self.key}/")]

    def drop_uploads(self) -> None:
        """The effect of a lifecycle rule AbortIncompleteMultipartUpload."""
        for key, upload in self.uploads():
            self.server.client().abort_multipart_upload(Bucket=self.server.bucket, Key=key, UploadId=upload)


@pytest.fixture
def prefix(s3_server: S3Server, s3_url: str) -> Prefix:
    return Prefix(s3_server, s3_url)


@pytest.fixture(params=["remembers", "forgets"])
def memory(request: pytest.FixtureRequest, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the server knows an upload that was completed."""
    monkeypatch.setattr(s3_server, "forgets_completed", request.param == "forgets")
    return str(request.param)


def test_a_small_segment_costs_three_requests(prefix: Prefix) -> None:
    with prefix.opened() as sink, prefix.server.counting() as seen:
        commit(sink, prepare(sink, CHUNKS))
    assert [request.partition(" ")[0] for request in seen] == ["POST", "PUT", "POST"]
    assert prefix.rows() == TABLE.to_pylist()


def test_an_object_says_which_transaction_wrote_it(prefix: Prefix) -> None:
    options = {**prefix.server.storage_options, "s3_additional_kwargs": {"Metadata": {"team": "orders"}}}
    with prefix.opened(storage_options=options) as sink:
        held = prepare(sink, CHUNKS)
    prefix.committed(held)
    found = prefix.server.client().head_object(Bucket=prefix.server.bucket, Key=f"{prefix.key}/0-0-0.jsonl")
    assert found["Metadata"] == {"wal-sink-transaction": held.transaction.id, "team": "orders"}


@pytest.mark.parametrize("most", [files_s3.MAX_ETAG_CHARS, 0], ids=["in the handle", "listed"])
def test_a_large_segment_goes_in_parts_of_one_size(prefix: Prefix, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_s3, "MAX_ETAG_CHARS", most)
    held = prefix.prepared(LARGE)
    ((key, upload),) = prefix.uploads()
    answer = prefix.server.client().list_parts(Bucket=prefix.server.bucket, Key=key, UploadId=upload)
    sizes = [part["Size"] for part in answer["Parts"]]
    assert sizes[:-1] == [PART_BYTES, PART_BYTES]
    assert len(held.handle) < 4096
    prefix.committed(held)
    prefix.committed(held)
    assert [row["id"] for row in prefix.rows()] == list(range(12))
    assert prefix.objects()["0-0-0.jsonl"] == b"".join(chunk.to_json(lines=True) for chunk in LARGE)


def test_an_upload_whose_parts_are_listed_in_pages_is_committed_whole(
    prefix: Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_s3, "MAX_ETAG_CHARS", 0)
    monkeypatch.setattr(files_s3, "PARTS_PAGE", 2)
    held = prefix.prepared(LARGE)
    with prefix.server.counting() as seen:
        prefix.committed(held)
    assert len(seen) == 3
    assert len(prefix.rows()) == 12


def test_no_more_than_a_part_is_kept_in_memory(prefix: Prefix) -> None:
    with prefix.opened() as sink:
        transaction = attempt_at(LARGE[0])
        token = sink.begin(transaction)
        for chunk in LARGE:
            sink.write(chunk)
            writing: Any = sink._writing
            assert len(writing.held._rest) < PART_BYTES
        sink.abort(transaction, token)
    assert not prefix.uploads()


def test_a_commit_whose_answer_was_lost(prefix: Prefix, memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client asks again by itself; and so does the next process."""
    held = prefix.prepared()
    lost: list[str] = []

    def lose(method: str, path: str, status: int) -> None:
        if not lost:
            lost.append(f"{method} {path} {status}")
            raise ConnectionResetError("the answer is lost")

    monkeypatch.setattr(prefix.server, "after_request", lose)
    options = {**prefix.server.storage_options, "config_kwargs": {"read_timeout": 1}}
    with prefix.opened(storage_options=options) as sink:
        commit(sink, held)
    assert lost == [f"POST /{prefix.server.bucket}/{prefix.key}/0-0-0.jsonl 200"]
    for _ in range(2):
        prefix.committed(held)
    assert prefix.rows() == TABLE.to_pylist(), memory


def test_a_commit_that_a_proxy_answers_is_tried_again(prefix: Prefix, monkeypatch: pytest.MonkeyPatch) -> None:
    held = prefix.prepared()
    answers = iter([Fault(200, "")])

    def page(*given: Any) -> list[bytes]:
        given[-1]("200 OK", [("Content-Type", "text/html")])
        return [b"<html><body>Sign in</body></html>"]

    monkeypatch.setattr(prefix.server, "fault", lambda *_: next(answers, None))
    monkeypatch.setattr(prefix.server, "_faulty", page)
    with pytest.raises(StoreError, match=r"complete multipart upload of.* does not answer like S3"):
        prefix.committed(held)
    assert prefix.rows() == []
    prefix.committed(held)
    assert prefix.rows() == TABLE.to_pylist()


def test_a_checksum_algorithm_is_refused_by_name(prefix: Prefix) -> None:
    options = {**prefix.server.storage_options, "s3_additional_kwargs": {"ChecksumAlgorithm": "SHA256"}}
    with (
        prefix.opened(storage_options=options) as sink,
        pytest.raises(PermanentError, match="takes no ChecksumAlgorithm"),
    ):
        prepare(sink, CHUNKS)


def test_an_object_of_that_name_is_not_replaced(prefix: Prefix, memory: str) -> None:
    held = prefix.prepared()
    client, place = prefix.server.client(), {"Bucket": prefix.server.bucket, "Key": f"{prefix.key}/0-0-0.jsonl"}
    client.put_object(**place, Body=b"mine")
    for _ in range(2):
        with pytest.raises(PermanentError, match=r"it is not the object of transaction .*\{wal_id\} in it"):
            prefix.committed(held)
    assert len(prefix.uploads()) == 1, memory
    assert prefix.objects() == {"0-0-0.jsonl": b"mine"}
    client.delete_object(**place)
    prefix.committed(held)
    assert prefix.rows() == TABLE.to_pylist()


def test_an_object_of_another_transaction_stands_in_for_none(prefix: Prefix, memory: str) -> None:
    first, second, third = (prefix.prepared() for _ in range(3))
    prefix.committed(first)
    prefix.aborted(second)
    with pytest.raises(HandleGoneError, match="the object with that name is another object"):
        prefix.committed(second)
    with pytest.raises(PermanentError, match="exists, but it is not the object of"):
        prefix.committed(third)
    prefix.committed(first)
    assert prefix.rows() == TABLE.to_pylist(), memory


@pytest.fixture(params=["upload first", "name first"])
def looks_at(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The field that the server checks first when it completes an upload: MinIO the name, moto the upload."""
    request_s3 = S3Store.request

    def name_first(store: S3Store, operation: str, key: str, **arguments: Any) -> Any:
        if operation == "complete_multipart_upload":
            try:
                request_s3(store, "head_object", key)
            except S3Error:
                pass
            else:
                raise S3Error(
                    "At least one of the pre-conditions you specified did not hold", code="PreconditionFailed"
                )
        return request_s3(store, operation, key, **arguments)

    if request.param == "name first":
        monkeypatch.setattr(S3Store, "request", name_first)
    return str(request.param)


def test_an_upload_that_is_gone_while_its_name_is_taken_is_gone(prefix: Prefix, looks_at: str) -> None:
    held = prefix.prepared()
    prefix.drop_uploads()
    client, place = prefix.server.client(), {"Bucket": prefix.server.bucket, "Key": f"{prefix.key}/0-0-0.jsonl"}
    client.put_object(**place, Body=b"mine")
    with pytest.raises(HandleGoneError, match=r"is gone, and the object with that name is another object") as error:
        prefix.committed(held)
    assert not error.value.never_committed, looks_at
    assert "the rows are held" not in str(error.value)
    assert prefix.objects() == {"0-0-0.jsonl": b"mine"}


def test_a_held_upload_whose_name_is_taken_says_that_it_is_held(prefix: Prefix, looks_at: str) -> None:
    held = prefix.prepared()
    client, place = prefix.server.client(), {"Bucket": prefix.server.bucket, "Key": f"{prefix.key}/0-0-0.jsonl"}
    client.put_object(**place, Body=b"mine")
    for _ in range(2):
        with pytest.raises(PermanentError, match="the rows are held in the upload"):
            prefix.committed(held)
    assert len(prefix.uploads()) == 1, looks_at
    client.delete_object(**place)
    for _ in range(2):
        prefix.committed(held)
    assert prefix.rows() == TABLE.to_pylist()


def test_an_object_that_a_reader_took_away_is_not_committed_again(prefix: Prefix, memory: str) -> None:
    held = prefix.prepared()
    prefix.committed(held)
    prefix.server.client().delete_object(Bucket=prefix.server.bucket, Key=f"{prefix.key}/0-0-0.jsonl")
    with pytest.raises(HandleGoneError, match="no object has that name") as error:
        prefix.committed(held)
    assert not error.value.never_committed, "it was"
    assert not prefix.objects(), memory


@pytest.mark.parametrize("most", [files_s3.MAX_ETAG_CHARS, 0], ids=["in the handle", "listed"])
@pytest.mark.parametrize("change", ["altered", "added"])
def test_parts_that_are_not_those_prepared_are_not_committed(
    prefix: Prefix, change: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_s3, "MAX_ETAG_CHARS", most)
    held = prefix.prepared()
    ((key, upload),) = prefix.uploads()
    number = 1 if change == "altered" else 2
    prefix.server.client().upload_part(
        Bucket=prefix.server.bucket, Key=key, UploadId=upload, PartNumber=number, Body=b"other rows"
    )
    if change == "added" and most:  # what the handle does not name is not in the object
        prefix.committed(held)
        assert prefix.rows() == TABLE.to_pylist()
        return
    with pytest.raises(HandleGoneError, match="is open, but it is not the upload that was prepared") as error:
        prefix.committed(held)
    assert error.value.never_committed
    assert not prefix.objects()


def test_nothing_of_rows_that_are_none(prefix: Prefix) -> None:
    held = prefix.prepared(chunks_of(TABLE.slice(0, 0)))
    assert not prefix.uploads()
    prefix.committed(held)
    assert not prefix.objects()


def test_an_abort_without_a_token_finds_what_this_sink_began(prefix: Prefix) -> None:
    with prefix.opened() as sink:
        transaction = attempt_at(CHUNKS[0])
        sink.begin(transaction)
        sink.abort(transaction, "")
    assert not prefix.uploads()


def test_options_of_objects_are_those_of_s3fs(prefix: Prefix) -> None:
    options = {**prefix.server.storage_options, "s3_additional_kwargs": {"ServerSideEncryption": "AES256"}}
    with prefix.opened(storage_options=options) as sink:
        commit(sink, prepare(sink, CHUNKS))
    found = prefix.server.client().head_object(Bucket=prefix.server.bucket, Key=f"{prefix.key}/0-0-0.jsonl")
    assert found["ServerSideEncryption"] == "AES256"


def test_a_bucket_that_is_missing_may_be_tried_again(prefix: Prefix) -> None:
    sink = TwoPhaseFilesSink("s3://nowhere/x", storage_options=prefix.server.storage_options)
    with (
        opened(sink, CHUNKS[0]),
        pytest.raises(StoreError, match=r"NoSuchBucket .*this bucket does not exist") as error,
    ):
        sink.begin(attempt_at(CHUNKS[0]))
    assert "test-secret-key" not in str(error.value)
    assert pickle.loads(pickle.dumps(error.value)).code == "NoSuchBucket"  # noqa: S301


# Behind its back.


def one_query(prefix: Prefix, **options: Any) -> Any:
    return query_into(prefix.sink(**options))


def test_uploads_that_a_lifecycle_rule_aborted_are_prepared_again(prefix: Prefix) -> None:
    with one_query(prefix) as query:
        query.stage(TABLE.slice(0, 5), TABLE.slice(5))
        assert len(prefix.uploads()) == 2
        prefix.drop_uploads()
        query.complete()
        query.deliver()
        assert sorted(row["id"] for row in prefix.rows()) == TABLE["id"].to_pylist()
        query.restart()
    assert sorted(row["id"] for row in prefix.rows()) == TABLE["id"].to_pylist()
    assert not prefix.uploads()


def test_without_kept_rows_a_lifecycle_rule_loses_them_loudly(prefix: Prefix) -> None:
    with one_query(prefix, keep_segments=False) as query:
        query.stage(TABLE)
        prefix.drop_uploads()
        query.complete()
        with pytest.raises(DeliveryError, match="keep_segments=False"):
            query.deliver()
        query.crash()
    assert not prefix.objects()


@pytest.mark.parametrize("on_gone", ["halt", "prepare_again"])
def test_after_a_death_in_commit_a_lifecycle_rule_needs_somebody_to_look(prefix: Prefix, on_gone: str) -> None:
    with one_query(prefix, on_gone=on_gone) as query:
        query.stage(TABLE)
        query.crash_at("before commit")
        query.complete()
        query.deliver()
        assert not query.alive
        prefix.drop_uploads()
        if on_gone == "halt":
            with pytest.raises(DeliveryError, match="on_gone='prepare_again'"):
                query.restart()
            query.crash()
        else:
            query.restart()
    assert prefix.rows() == ([] if on_gone == "halt" else TABLE.to_pylist())


def test_what_a_death_leaves_in_the_bucket_is_aborted_by_a_later_start(prefix: Prefix) -> None:
    """All but the upload whose id nobody had written down yet: that one is for the bucket's lifecycle rule."""
    numbers = itertools.count()

    def new_prefix() -> Prefix:
        return Prefix(prefix.server, f"{prefix.url}/{next(numbers)}")

    undisturbed = live(place_of(new_prefix().sink))
    unknown = [number for number, point in enumerate(undisturbed, 1) if _leaves_an_unknown_upload(point)]
    for number in sorted({*range(1, len(undisturbed) + 1, 29), *unknown[:3]}):
        fresh = new_prefix()
        place = place_of(fresh.sink)
        live(place, dies_at=number)
        live(place)
        live(place)  # a start aborts what is left of batches that were delivered before it
        where = undisturbed[number - 1]
        assert len(fresh.uploads()) == int(number in unknown), where
        assert sorted(row["id"] for row in fresh.rows()) == list(range(15)), where
    assert 3 <= len(unknown) <= len(undisturbed) / 10


def _leaves_an_unknown_upload(point: str) -> bool:
    """Whether an upload is open just then whose id the WAL does not have."""
    in_begin = "TwoPhaseFilesSink.begin" in point and point.endswith("return self._writing.held.token")
    return in_begin or point.startswith("after begin") or (point.startswith("before create") and ".token." in point)
