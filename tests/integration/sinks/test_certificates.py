"""TLS of every backend: a wrong name, an unknown authority. A client must hang up, and no retry helps."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from redis.connection import SSLConnection

from tests.house.kit import chunks_of
from tests.house.sinks import Chunk, Sink
from tests.support.chunks import CONTEXT
from tests.support.servers.tls import Authority, Preface, TlsServer, greeting, mysql, postgresql
from wal_sink.errors import DeliveryError, PermanentError, StoreError
from wal_sink.settings import Delivery, Retry
from wal_sink.sinks.calls import is_certificate_error
from wal_sink.testing import query_into
from wal_sink_backends.dynamodb.sink import DynamoDbSink
from wal_sink_backends.files.chunk_sink import FilesSink
from wal_sink_backends.http.sink import HttpSink
from wal_sink_backends.kafka.sink import KafkaSink
from wal_sink_backends.redis.sink import RedisSink
from wal_sink_backends.sql.sink import SqlSink

Make = Callable[[int, Path], Any]


def chunk() -> Chunk:
    (made,) = chunks_of(pa.table({"id": [1]}))
    return made


def _http(port: int, trusted: Path) -> Any:
    return HttpSink(f"https://127.0.0.1:{port}/rows", verify=str(trusted))


def _upper_http(port: int, trusted: Path) -> Any:
    return HttpSink(f"HTTPS://127.0.0.1:{port}/rows", verify=str(trusted))


def _redis(port: int, trusted: Path) -> Any:
    return RedisSink(f"rediss://127.0.0.1:{port}/0", key="a:{id}", ca_file=str(trusted), timeout_s=60)


def _postgresql(port: int, trusted: Path) -> Any:
    return SqlSink(f"postgresql://u@127.0.0.1:{port}/d?sslrootcert={trusted}", "rows", connect_timeout_s=60)


def _mariadb(port: int, trusted: Path) -> Any:
    return SqlSink(f"mariadb://u@127.0.0.1:{port}/d?ssl_ca={trusted}", "rows", connect_timeout_s=60)


def _kafka(port: int, trusted: Path) -> Any:
    conf = {"security.protocol": "SSL", "ssl.ca.location": str(trusted)}
    return KafkaSink(f"127.0.0.1:{port}", "rows", conf=conf, transaction_timeout_s=10)


def _dynamodb(port: int, _trusted: Path) -> Any:
    return DynamoDbSink("rows", endpoint_url=f"https://127.0.0.1:{port}", region="eu-central-1", timeout_s=60)


def _s3(port: int, _trusted: Path) -> Any:
    client = {"endpoint_url": f"https://127.0.0.1:{port}", "region_name": "eu-central-1"}
    return FilesSink("s3://bucket/out", storage_options={"key": "k", "secret": "hunter2", "client_kwargs": client})


BACKENDS: dict[str, tuple[Make, Preface | None]] = {
    "http": (_http, None),
    "HTTP in capitals": (_upper_http, None),
    "redis": (_redis, None),
    "postgresql": (_postgresql, postgresql),
    "mariadb": (_mariadb, mysql),
    "kafka": (_kafka, None),
    "dynamodb": (_dynamodb, None),
    "s3": (_s3, None),
}


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    made = Authority(tmp_path, "ours")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(made.file))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    return made


@pytest.fixture(params=["wrong name", "unknown authority"])
def certificate(request: pytest.FixtureRequest, tmp_path: Path, authority: Authority) -> Path:
    if request.param == "wrong name":
        return authority.certificate("elsewhere.test")
    return Authority(tmp_path, "theirs").certificate("127.0.0.1")


def use(sink: Any) -> None:
    try:
        sink.open(CONTEXT)
        sink.write(chunk())
    finally:
        sink.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_server_that_does_not_prove_its_name_gets_nothing(
    backend: str, certificate: Path, authority: Authority
) -> None:
    make, preface = BACKENDS[backend]
    with TlsServer(certificate, preface).running() as server:
        kind = StoreError if backend == "s3" else PermanentError  # the core takes it for permanent: see below
        with pytest.raises(kind, match=r"(?i)certificate|hostname|does not match") as caught:
            use(make(server.port, authority.file))
        assert kind is PermanentError or is_certificate_error(caught.value)
        assert server.connections >= 1
        assert server.trusted == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_server_that_proves_its_name_is_talked_to(backend: str, authority: Authority) -> None:
    """Else the test above would say nothing."""
    make, preface = BACKENDS[backend]
    with TlsServer(authority.certificate("127.0.0.1"), preface).running() as server:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it says to a server that hangs up
            use(make(server.port, authority.file))
        assert not isinstance(caught.value, PermanentError), caught.value
        assert server.trusted >= 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_delivery_stops_at_a_certificate_error(
    backend: str, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    make, preface = BACKENDS[backend]
    with TlsServer(authority.certificate("elsewhere.test"), preface).running() as server:
        sink = make(server.port, authority.file)
        with (
            pytest.raises(DeliveryError, match=r"(?i)certificate|does not match|doesn't match"),
            query_into(Delivery(sink, retry=Retry(attempts=8))) as query,
        ):
            query.batch(pa.table({"id": [1]}))
    assert "attempt 1 of" not in caplog.text


class Careless(Sink):
    """A user's own, over a client that says what `ssl` says in its own words."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def write(self, chunk: Chunk) -> None:  # noqa: ARG002 - it takes none
        try:
            raise self.error
        except Exception as error:
            raise ConnectionError("the API cannot be reached") from error


def _ssl_error(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


@pytest.mark.parametrize(
    "error",
    [
        ssl.SSLCertVerificationError("certificate verify failed"),
        _ssl_error("TLSV13_ALERT_CERTIFICATE_REQUIRED"),
        _ssl_error("TLSV1_ALERT_UNKNOWN_CA"),
        _ssl_error("tlsv1 alert unknown_ca"),
    ],
)
def test_a_certificate_error_of_a_users_sink_is_permanent(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    assert is_certificate_error(error)
    sink = Careless(error)
    with (
        pytest.raises(DeliveryError, match="cannot be reached"),
        query_into(Delivery(sink, retry=Retry(attempts=3))) as query,
    ):
        query.batch(pa.table({"id": [1]}))
    assert "attempt 1 of" not in caplog.text


def test_other_errors_of_a_connection_are_tried_again() -> None:
    cases: list[Exception] = [
        *(_ssl_error("UNEXPECTED_EOF_WHILE_READING"), OSError("reset"), ssl.SSLError()),
        UnicodeDecodeError("ascii", b"", 0, 1, "certificate"),  # its reason is no reason of TLS
    ]
    for error in cases:
        assert not is_certificate_error(error)


def test_causes_and_contexts_are_looked_at_wherever_both_lead() -> None:
    for attribute, other in (("__cause__", "__context__"), ("__context__", "__cause__")):
        error = ConnectionError("the API cannot be reached")
        setattr(error, attribute, ssl.SSLCertVerificationError("certificate verify failed"))
        setattr(error, other, OSError("reset"))
        assert is_certificate_error(error)


def test_a_circle_of_causes_ends() -> None:
    one, other = OSError("one"), OSError("other")
    one.__cause__, other.__cause__ = other, one
    assert not is_certificate_error(one)


# Client versions.


def test_the_client_of_redis_is_told_to_check_the_name(authority: Authority) -> None:
    """redis-py 5 checks none by itself; see also `test_a_server_that_does_not_prove_its_name_gets_nothing`."""
    assert _redis(1, authority.file)._connection_options()["ssl_check_hostname"] is True
    assert "ssl_check_hostname" not in RedisSink("redis://h/0", key="a:{id}")._connection_options()


def test_a_client_that_checks_no_name_by_itself(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """redis-py 5, as far as its default goes."""
    newer = SSLConnection.__init__

    def older(self: Any, **given: Any) -> None:
        newer(self, **{"ssl_check_hostname": False, **given})

    monkeypatch.setattr(SSLConnection, "__init__", older)
    with TlsServer(authority.certificate("elsewhere.test")).running() as server:
        with pytest.raises(PermanentError, match="CERTIFICATE_VERIFY_FAILED"):
            use(_redis(server.port, authority.file))
        assert server.trusted == 0


def test_a_server_without_tls_is_refused_where_an_authority_is_given(authority: Authority) -> None:
    """PyMySQL 1.1 went on without TLS, so the extra asks for 1.2."""

    def greet(connection: Any) -> None:
        connection.sendall(greeting(tls=False))

    with TlsServer(authority.certificate("127.0.0.1"), greet).running() as server:
        with pytest.raises(PermanentError, match="SSL"):
            use(_mariadb(server.port, authority.file))
        assert server.trusted == 0
