"""A Delta table on S3 servers of two makers: conditional writes, lost and late requests, and what no process may do."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from threading import Barrier, Thread
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.chaos.faulty_proxy import Answer, Exchange, FaultyProxy, Request, pass_on
from tests.support.delta_tables import at, batch, context, deliver, opened
from tests.support.servers.s3_product import ACCESS_KEY, SECRET_KEY, S3Product
from wal_sink.errors import StoreError

pytest_plugins = ["tests.support.fixtures.servers"]
pytestmark = [pytest.mark.s3, pytest.mark.processes]

_numbers = itertools.count()


@pytest.fixture(params=["seaweedfs", "minio"])
def server(request: pytest.FixtureRequest) -> S3Product:
    found: S3Product = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def proxy(server: S3Product) -> Iterator[FaultyProxy]:
    with FaultyProxy(server.endpoint) as started:
        yield started


@pytest.fixture
def table(server: S3Product) -> str:
    """Return the URL of a table that is not there yet."""
    return f"s3://{server.bucket}/delta-{next(_numbers)}"


def options(endpoint: str, **more: str) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        **more,
    }


def ids_in(table: str, server: S3Product) -> list[int]:
    """Return the ids that Arrow reads."""
    lake = DeltaTable(table, storage_options=options(server.endpoint))
    found: list[dict[str, int]] = lake.to_pyarrow_dataset().to_table(columns=["id"]).to_pylist()
    return sorted(row["id"] for row in found)


def version_of(table: str, server: S3Product) -> int:
    return DeltaTable(table, storage_options=options(server.endpoint)).version()


def test_batches_are_written_and_read_back(server: S3Product, table: str) -> None:
    rows = pa.table({"id": pa.array(range(1_000_000), pa.int64()), "note": pa.nulls(1_000_000, pa.string())})
    with opened(table, storage_options=options(server.endpoint), create=True) as sink:
        assert sink.position() is None
        sink.commit(batch(sink, 0))
        sink.commit(batch(sink, 1, rows))
        assert sink.position() == at(1)
        DeltaTable(table, storage_options=options(server.endpoint)).restore(1)
        assert sink.position() == at(1, held=0)
    assert ids_in(table, server) == [1, 2, 3]


def test_one_of_several_processes_commits_a_batch(server: S3Product, table: str) -> None:
    barrier, lost = Barrier(4), list[Exception]()

    def deliver_in_step() -> None:
        with opened(table, storage_options=options(server.endpoint), create=True) as sink:
            for batch_id in range(4):
                prepared = batch(sink, batch_id)
                barrier.wait()
                try:
                    sink.commit(prepared)
                except StoreError as error:
                    lost.append(error)
                barrier.wait()

    threads = [Thread(target=deliver_in_step) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lost == []
    assert ids_in(table, server) == sorted([1, 2, 3] * 4)
    history = DeltaTable(table, storage_options=options(server.endpoint)).history()
    assert [entry["operation"] for entry in history] == ["WRITE"] * 4 + ["CREATE TABLE"], history


@pytest.mark.parametrize("name", ["AWS_CONDITIONAL_PUT", "conditional_put"])
def test_a_store_without_conditional_writes_is_not_written(server: S3Product, table: str, name: str) -> None:
    with opened(table, storage_options=options(server.endpoint), create=True) as sink:
        deliver(sink, 0)
    with opened(table, storage_options=options(server.endpoint, **{name: "disabled"})) as sink:
        waiting = batch(sink, 1)
        with pytest.raises(StoreError, match="conditional put"):
            sink.commit(waiting)
    assert version_of(table, server) == 1


# --- each request of a commit


def _refused(exchange: Exchange) -> None:
    exchange.answer(Answer(400, b"<Error><Code>Spoilt</Code></Error>"))


def _answer_lost(exchange: Exchange) -> None:
    exchange.forward()
    exchange.answer(Answer(400, b"<Error><Code>Spoilt</Code></Error>"))


def _server_error_after(exchange: Exchange) -> None:
    """The client tries such a request again by itself."""
    exchange.forward()
    exchange.answer(Answer(500, b"<Error><Code>InternalError</Code></Error>"))


def _connection_lost_after(exchange: Exchange) -> None:
    exchange.forward()
    exchange.drop()


@pytest.mark.parametrize("fault", [_refused, _answer_lost, _server_error_after, _connection_lost_after])
def test_a_commit_whose_answer_is_lost_is_looked_up(
    server: S3Product, proxy: FaultyProxy, table: str, fault: Callable[[Exchange], None]
) -> None:
    """Files are written past the proxy: the library opens them while it holds Python's lock, which the proxy needs."""
    requests = _requests_of_a_commit(server, proxy, f"{table}-before")
    (place,) = [place for place, (request, _) in enumerate(requests, 1) if request.method == "PUT"]
    _commit_through(server, proxy, table, fault, place)
    assert proxy.hit is not None
    assert proxy.hit.method == "PUT"
    assert "_delta_log/00000000000000000002.json" in proxy.hit.target
    _is_delivered(server, table)


def test_every_request_of_a_commit_may_fail(server: S3Product, proxy: FaultyProxy, table: str) -> None:
    methods = list[str]()
    for number in itertools.count(1):
        _commit_through(server, proxy, f"{table}-{number}", _refused, number)
        _is_delivered(server, f"{table}-{number}")
        if proxy.hit is None:
            break
        methods.append(proxy.hit.method)
    assert {"GET", "HEAD", "PUT"} <= {*methods}


def test_every_request_of_a_merge_may_fail(server: S3Product, proxy: FaultyProxy, table: str) -> None:
    """Before the server got it, and after: with the answer to the commit among them."""
    written = list[str]()
    for fault in (_refused, _answer_lost):
        for number in itertools.count(1):
            its = f"{table}-{fault.__name__}-{number}"
            _commit_through(server, proxy, its, fault, number, mode="upsert", key="id")
            _is_delivered(server, its, [1, 2, 3])
            if proxy.hit is None:
                break
            if proxy.hit.method == "PUT":
                written.append(proxy.hit.target)
    assert any("_delta_log/00000000000000000002.json" in target for target in written)


def test_a_batch_costs_as_many_requests_however_many_there_were(
    server: S3Product, proxy: FaultyProxy, table: str
) -> None:
    """Those of its files are not counted. The first look of a process reads the table."""
    proxy.arm(pass_on, at=0)
    found = []
    with opened(table, storage_options=options(server.endpoint), create=True) as direct:
        deliver(direct, 0)
        for number in range(1, 5):
            prepared = batch(direct, number)
            with opened(table, storage_options=options(proxy.url)) as sink:
                before = len(proxy.seen)
                assert sink.position() == prepared.follows
                sink.commit(prepared)
                found.append(len(proxy.seen) - before)
    assert found[1:] == [18] * 3


def _requests_of_a_commit(server: S3Product, proxy: FaultyProxy, table: str) -> list[tuple[Request, Answer]]:
    _commit_through(server, proxy, table, pass_on, 0)
    return list(proxy.seen)


def _commit_through(
    server: S3Product,
    proxy: FaultyProxy,
    table: str,
    fault: Callable[[Exchange], None],
    number: int,
    **upsert: Any,
) -> None:
    """Commit batch 1 as the core does: after a failed call it looks, and commits again if the batch is not there."""
    with (
        opened(table, storage_options=options(server.endpoint), create=True, **upsert) as direct,
        opened(table, storage_options=options(proxy.url), **upsert) as sink,
    ):
        deliver(direct, 0)
        prepared = batch(direct, 1)
        proxy.arm(fault, at=number)
        try:
            sink.commit(prepared)
        except StoreError:
            if direct.position() != prepared.position:
                direct.commit(batch(direct, 1) if upsert else prepared)
        assert proxy.problems == []


def _is_delivered(server: S3Product, table: str, ids: Sequence[int] = (1, 1, 2, 2, 3, 3)) -> None:
    lake = DeltaTable(table, storage_options=options(server.endpoint))
    assert lake.version() == 2
    assert ids_in(table, server) == [*ids]


def test_a_commit_that_arrives_late_is_refused_by_the_store(server: S3Product, proxy: FaultyProxy, table: str) -> None:
    """Its request is held back until the next process has committed this batch and another one."""
    requests = _requests_of_a_commit(server, proxy, f"{table}-before")
    (place,) = [place for place, (request, _) in enumerate(requests, 1) if request.method == "PUT"]
    with (
        opened(table, storage_options=options(server.endpoint), create=True) as new,
        opened(table, storage_options=options(proxy.url)) as old,
    ):
        deliver(new, 0)
        frozen = batch(new, 1)
        proxy.arm(_refused, at=place)
        with pytest.raises(StoreError):
            old.commit(frozen)
        assert proxy.hit is not None
        assert "_delta_log/00000000000000000002.json" in proxy.hit.target
        deliver(new, 1, 2)
        assert proxy.forward(proxy.hit).status in {409, 412}
        assert new.position() == at(2)
    assert ids_in(table, server) == sorted([1, 2, 3] * 3)


def test_another_sink_has_a_position_of_its_own(server: S3Product, table: str) -> None:
    for name in ("one", "two"):
        with opened(table, context(name), storage_options=options(server.endpoint), create=True) as sink:
            deliver(sink, 0)
    assert ids_in(table, server) == sorted([1, 2, 3] * 2)
