"""An Iceberg table of a catalogue on PostgreSQL or behind a stub of a REST server, with its files on S3."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

from tests.chaos.faulty_proxy import Answer, Exchange, FaultyProxy, Request, pass_on
from tests.support.iceberg_tables import (
    NAME,
    ROWS,
    at,
    batch,
    catalog_in,
    deliver,
    ids_in,
    loaded,
    made,
    opened,
    rows_in,
    there,
)
from tests.support.servers.databases import PASSWORD, USER, PostgresqlServer
from tests.support.servers.iceberg_rest import RestStub
from tests.support.servers.s3_product import ACCESS_KEY, SECRET_KEY, S3Product
from wal_sink.errors import StoreError
from wal_sink.testing import crash_matrix
from wal_sink_backends.iceberg import IcebergSink

pytest_plugins = ["tests.support.fixtures.servers"]
pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore:.*was deleted while still open:ResourceWarning"),  # by what dies in a test
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning:pyiceberg"
    ),  # of a REST catalogue without a server of tokens
]

Catalog = dict[str, str]
_numbers = itertools.count()


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[FaultyProxy]:
    """Return a proxy in front of a catalogue's stub. Its table exists."""
    made(catalog_in(tmp_path))
    with RestStub(loaded(catalog_in(tmp_path))) as stub, FaultyProxy(stub.url) as proxy:
        yield proxy


def behind(proxy: FaultyProxy) -> Catalog:
    return {"type": "rest", "uri": proxy.url}


def on_s3(server: S3Product, endpoint: str = "") -> Catalog:
    return {
        "warehouse": f"s3://{server.bucket}/iceberg-{next(_numbers)}",
        "s3.endpoint": endpoint or server.endpoint,
        "s3.access-key-id": ACCESS_KEY,
        "s3.secret-access-key": SECRET_KEY,
        "s3.region": "us-east-1",
    }


def on_postgresql(server: PostgresqlServer) -> Catalog:
    address = f"{USER}:{quote(PASSWORD, safe='')}@127.0.0.1:{server.port}/{server.new_database()}"
    return {"type": "sql", "uri": f"postgresql+psycopg://{address}"}


@pytest.mark.s3
def test_batches_are_written_and_read_back(postgresql: PostgresqlServer, minio: S3Product) -> None:
    catalog = {**on_postgresql(postgresql), **on_s3(minio)}
    rows = pa.table({"id": pa.array(range(1_000_000), pa.int64()), "note": pa.nulls(1_000_000, pa.string())})
    with opened(catalog, create=True) as sink:
        assert sink.position() is None
        sink.commit(batch(sink, 0))
        sink.commit(batch(sink, 1, rows))
        assert sink.position() == at(1)
        table = there(catalog)
        assert table.scan(row_filter="id >= 999999").to_arrow().num_rows == 1
        table.manage_snapshots().set_current_snapshot(table.metadata.snapshots[0].snapshot_id).commit()
        position = sink.position()
        assert position is not None
        assert (position.is_shown, position.held_through) == (False, 0)
    assert ids_in(catalog) == [1, 2, 3]


@pytest.mark.s3
def test_every_disturbance_leaves_every_row_once(postgresql: PostgresqlServer, minio: S3Product) -> None:
    def new_catalog() -> Catalog:
        return {**on_postgresql(postgresql), **on_s3(minio)}

    def new_sink(catalog: Catalog) -> IcebergSink:
        return IcebergSink(NAME, catalog=catalog, create=True)

    matrix = crash_matrix(new_sink, rows_in, new_catalog, tables=[ROWS, ROWS], every=12).check()
    assert (matrix.lost, matrix.repeated) == (0, 0)
    assert matrix.crashes > 5


@pytest.mark.s3
def test_one_of_several_processes_commits_a_batch(postgresql: PostgresqlServer, minio: S3Product) -> None:
    catalog, lost = {**on_postgresql(postgresql), **on_s3(minio)}, list[Exception]()
    made(catalog)

    def deliver_all() -> None:
        with opened(catalog) as sink:
            for batch_id in range(4):
                while (position := sink.position()) is None or position.batch_id < batch_id:
                    try:
                        sink.commit(batch(sink, batch_id))
                    except StoreError as error:
                        lost.append(error)

    threads = [Thread(target=deliver_all) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ids_in(catalog) == sorted([1, 2, 3] * 4)
    assert len(there(catalog).metadata.snapshots) == 4


# --- each request to the store


def _refused(exchange: Exchange) -> None:
    exchange.answer(Answer(400, b"<Error><Code>Spoilt</Code></Error>"))


@pytest.mark.s3
def test_every_request_to_the_store_may_fail(tmp_path: Path, minio: S3Product) -> None:
    with FaultyProxy(minio.endpoint) as proxy:
        steady = _deliver_through(proxy, minio, tmp_path / "steady", pass_on, 0)
        requests = [request.method for request, _ in proxy.seen]
        assert (len(requests), requests.count("PUT")) == (STEADY_REQUESTS, 4)
        assert steady == []
        for number in range(1, len(requests) + 1):
            _deliver_through(proxy, minio, tmp_path / str(number), _refused, number)
            assert proxy.hit is not None


STEADY_REQUESTS = 25
"""Of a batch with one segment."""


def _deliver_through(
    proxy: FaultyProxy, server: S3Product, folder: Path, fault: Callable[[Exchange], None], number: int
) -> list[Exception]:
    """Deliver batch 1 as the core does: after a failed call it looks, and commits again if the batch is not there."""
    catalog, failures = {**catalog_in(folder), **on_s3(server, proxy.url)}, list[Exception]()
    made(catalog)
    with opened(catalog) as sink:
        deliver(sink, 0)
    proxy.arm(fault, at=number)
    with opened(catalog) as sink:
        for _ in range(3):
            try:
                sink.commit(batch(sink, 1))  # after its own look
                break
            except StoreError as error:
                failures.append(error)
    seen = [*proxy.seen]
    assert ids_in(catalog) == [1, 1, 2, 2, 3, 3]
    assert len(there(catalog).metadata.snapshots) == 2
    proxy.seen = seen
    assert proxy.problems == []
    return failures


# --- a REST catalogue


def _commits(proxy: FaultyProxy) -> list[tuple[Request, Answer]]:
    return [(request, answer) for request, answer in proxy.seen if request.method == "POST"]


def _place_of_commit(proxy: FaultyProxy) -> int:
    """Return the number of the request that commits batch 1."""
    with opened(behind(proxy)) as sink:
        deliver(sink, 0)
        prepared = batch(sink, 1)
        proxy.arm()
        sink.commit(prepared)
    (place,) = [place for place, (request, _) in enumerate(proxy.seen, 1) if request.method == "POST"]
    return place


def _lost_before(exchange: Exchange) -> None:
    exchange.reset()


def _lost_after(exchange: Exchange) -> None:
    exchange.forward()
    exchange.reset()


def _server_error_after(exchange: Exchange) -> None:
    exchange.forward()
    exchange.answer(Answer(504, b"{}"))


def _unavailable(exchange: Exchange) -> None:
    exchange.answer(Answer(503, b"{}"))


@pytest.mark.parametrize("fault", [_lost_before, _lost_after, _server_error_after, _unavailable])
def test_a_commit_without_an_answer_is_looked_up_and_not_sent_again(
    rest: FaultyProxy, tmp_path: Path, fault: Callable[[Exchange], None]
) -> None:
    place = _place_of_commit(rest)
    arrives = fault in {_lost_after, _server_error_after}
    with opened(behind(rest)) as sink:
        prepared = batch(sink, 2)
        rest.arm(fault, at=place)
        if arrives:
            sink.commit(prepared)
        else:
            with pytest.raises(StoreError, match="committing"):
                sink.commit(prepared)
        assert rest.hit is not None
        assert len(_commits(rest)) == arrives
        assert sink.position() == at(2 if arrives else 1)
    assert ids_in(catalog_in(tmp_path)) == sorted([1, 2, 3] * (3 if arrives else 2))


def test_a_commit_that_arrives_late_is_refused_by_the_catalogue(rest: FaultyProxy, tmp_path: Path) -> None:
    """Its request is held back until the next process has committed this batch and another one."""
    place = _place_of_commit(rest)
    with opened(behind(rest)) as old, opened(behind(rest)) as new:
        frozen = batch(old, 2)
        rest.arm(_lost_before, at=place)
        with pytest.raises(StoreError):
            old.commit(frozen)
        late = rest.hit
        assert late is not None
        deliver(new, 2, 3)
        answer = rest.forward(late)
        assert (answer.status, b"has changed" in answer.body) == (409, True)
        assert new.position() == at(3)
    assert ids_in(catalog_in(tmp_path)) == sorted([1, 2, 3] * 4)


def test_a_table_behind_a_rest_catalogue_is_made_by_its_first_batch(tmp_path: Path) -> None:
    with RestStub(loaded(catalog_in(tmp_path))) as stub:
        catalog: dict[str, Any] = {"type": "rest", "uri": stub.url}
        with opened(catalog, create=True) as sink:
            deliver(sink, 0, 1)
            assert sink.position() == at(1)
        assert ids_in(catalog) == [1, 1, 2, 2, 3, 3]
